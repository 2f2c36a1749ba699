package crd

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// resource is one CRD as an API server holds it.
type resource struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

func load(t *testing.T) map[string]*resource {
	t.Helper()
	files, err := filepath.Glob("../../deploy/crds/*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v; want five CRDs", files, err)
	}
	out := map[string]*resource{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &v1); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
		var crd apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd, nil); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		crd.Status.StoredVersions = []string{"v1alpha1"}
		// This is what an API server asks before it takes a CRD: the rules compile,
		// and their worst cost is bounded.
		if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &crd); len(errs) > 0 {
			t.Errorf("%s: %v", file, errs.ToAggregate())
			continue
		}
		props := crd.Spec.Validation
		if props == nil {
			props = crd.Spec.Versions[0].Schema
		}
		r := &resource{}
		if r.structural, err = schema.NewStructural(props.OpenAPIV3Schema); err != nil {
			t.Fatal(err)
		}
		if r.schema, _, err = validation.NewSchemaValidator(props.OpenAPIV3Schema); err != nil {
			t.Fatal(err)
		}
		if r.rules = cel.NewValidator(r.structural, true, celconfig.PerCallLimit); r.rules == nil {
			t.Fatalf("%s has no rules", file)
		}
		out[crd.Spec.Names.Kind] = r
	}
	return out
}

func unstructured(t *testing.T, in string) map[string]any {
	t.Helper()
	var out map[string]any
	raw, err := yaml.YAMLToJSON([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return integers(out).(map[string]any)
}

// integers turns whole numbers into int64, as an API server reads them.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}

// server validates as an API server does; old may be empty.
func (r *resource) server(t *testing.T, in, old string) field.ErrorList {
	t.Helper()
	obj := unstructured(t, in)
	defaulting.Default(obj, r.structural)
	var before map[string]any
	if old != "" {
		before = unstructured(t, old)
		defaulting.Default(before, r.structural)
	}
	errs := validation.ValidateCustomResource(nil, obj, r.schema)
	if len(errs) > 0 {
		return errs // an API server does not run rules on what the schema refuses
	}
	var oldObj any
	if before != nil {
		oldObj = before
	}
	celErrs, _ := r.rules.Validate(context.Background(), nil, r.structural, obj, oldObj, celconfig.RuntimeCELCostBudget)
	return append(errs, celErrs...)
}

func ours(t *testing.T, in, old string) field.ErrorList {
	t.Helper()
	o := decode(t, in)
	r, err := datastore.LookupObject(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Default(o)
	if old == "" {
		return r.Validate(o, nil)
	}
	before := decode(t, old)
	r.Default(before)
	before.SetResourceVersion("1")
	o.SetResourceVersion("1")
	return r.Validate(o, before)
}

func decode(t *testing.T, in string) datastore.Object {
	t.Helper()
	objects, err := datastore.DecodeManifest(strings.NewReader(in))
	if err != nil || len(objects) != 1 {
		t.Fatalf("%v, %v in\n%s", objects, err, in)
	}
	return objects[0]
}

func object(kind, name, body string) string {
	return "apiVersion: fairlead.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n" + body
}

// verdict of both.
type verdict int

const (
	valid verdict = iota
	refused
	// onlyGo: what CEL cannot say, or not at a bounded cost.
	onlyGo
)

func subnet(spec string) string { return object("Subnet", "pods", "spec: {"+spec+"}") }

func block(name, spec string) string { return object("IPBlock", name, "spec: {"+spec+"}") }

func TestAgreementOnCreate(t *testing.T) {
	const cidr = "cidrs: [10.128.0.0/14, 'fd00:10::/64'], "
	resources := load(t)
	for name, test := range map[string]struct {
		in   string
		want verdict
	}{
		"subnet":                {subnet("cidrs: [10.128.0.0/14, 'fd00:10::/64']"), valid},
		"subnet name":           {object("Subnet", "a.b", "spec: {cidrs: [10.0.0.0/16]}"), refused},
		"no cidr":               {subnet("cidrs: []"), refused},
		"an address":            {subnet("cidrs: [10.0.0.1]"), refused},
		"garbage":               {subnet("cidrs: [ten]"), refused},
		"host bits":             {subnet("cidrs: [10.0.0.1/8]"), refused},
		"mapped":                {subnet("cidrs: ['::ffff:10.0.0.0/104']"), refused},
		"not canonical":         {subnet("cidrs: ['fd00:0::/64']"), refused},
		"upper case":            {subnet("cidrs: ['FD00::/64']"), refused},
		"leading zero":          {subnet("cidrs: ['10.0.0.0/08']"), refused},
		"multicast":             {subnet("cidrs: [224.1.0.0/16]"), refused},
		"class E":               {subnet("cidrs: [240.0.0.0/8]"), refused},
		"multicast v6":          {subnet("cidrs: ['ff02::/64']"), refused},
		"loopback":              {subnet("cidrs: [127.1.0.0/16]"), refused},
		"loopback v6":           {subnet("cidrs: ['::/64']"), refused},
		"around mapped":         {subnet("cidrs: ['::f000:0:0/84']"), refused},
		"unspecified":           {subnet("cidrs: [0.0.0.0/8]"), refused},
		"link-local":            {subnet("cidrs: [169.254.0.0/20]"), refused},
		"link-local v6":         {subnet("cidrs: ['fe80::/64']"), refused},
		"everything":            {subnet("cidrs: [0.0.0.0/0]"), refused},
		"all of v6":             {subnet("cidrs: ['::/0']"), refused},
		"overlap":               {subnet("cidrs: [10.0.0.0/16, 10.1.0.0/16, 10.0.8.0/24]"), refused},
		"twice":                 {subnet("cidrs: [10.0.0.0/16, 10.0.0.0/16]"), refused},
		"small cidr":            {subnet("cidrs: [10.0.0.0/28]"), refused},
		"small cidr fits":       {subnet("cidrs: [10.0.0.0/28], blockSize: {v4: 28}"), valid},
		"small v6 cidr":         {subnet("cidrs: ['fd00::/124']"), refused},
		"block size range":      {subnet("cidrs: [10.0.0.0/16], blockSize: {v4: 33}"), refused},
		"vpc name":              {subnet("vpc: Red, cidrs: [10.0.0.0/16]"), refused},
		"vpc":                   {subnet("vpc: red, cidrs: [10.0.0.0/16]"), valid},
		"transport":             {subnet("transport: Pigeon, cidrs: [10.0.0.0/16]"), refused},
		"encapsulation":         {subnet("encapsulation: GRE, cidrs: [10.0.0.0/16]"), refused},
		"overlay without":       {subnet("encapsulation: None, cidrs: [10.0.0.0/16]"), refused},
		"cross subnet":          {subnet("encapsulation: CrossSubnet, cidrs: [10.0.0.0/16]"), valid},
		"routed":                {subnet("transport: Routed, cidrs: [10.0.0.0/16]"), valid},
		"routed with":           {subnet("transport: Routed, encapsulation: VXLAN, cidrs: [10.0.0.0/16]"), refused},
		"exclude":               {subnet(cidr + "exclude: [10.128.0.5, 10.130.0.0/24, 'fd00:10::1']"), valid},
		"exclude outside":       {subnet(cidr + "exclude: [10.0.0.1]"), refused},
		"exclude larger":        {subnet(cidr + "exclude: [10.0.0.0/8]"), refused},
		"exclude garbage":       {subnet(cidr + "exclude: [x]"), refused},
		"gateway":               {subnet(cidr + "gateway: [10.128.0.1]"), refused},
		"no gateway":            {subnet(cidr + "gateway: []"), valid},
		"underlay":              {subnet(cidr + "transport: Underlay, gateway: [10.128.0.1, 'fd00:10::1']"), valid},
		"two gateways":          {subnet(cidr + "transport: Underlay, gateway: [10.128.0.1, 10.128.0.2]"), refused},
		"gateway outside":       {subnet(cidr + "transport: Underlay, gateway: [10.0.0.1]"), refused},
		"gateway garbage":       {subnet(cidr + "transport: Underlay, gateway: [x]"), refused},
		"gateway mapped":        {subnet(cidr + "transport: Underlay, gateway: ['::ffff:10.128.0.1']"), refused},
		"selector":              {subnet(cidr + "namespaces: {matchLabels: {a: 'b c'}}"), onlyGo},
		"vpc object":            {object("VPC", "red", "spec: {isolation: Tenant, namespaces: {}}"), valid},
		"vpc object defaults":   {object("VPC", "red", "spec: {}"), valid},
		"vpc object name":       {object("VPC", "r.d", "spec: {}"), refused},
		"isolation":             {object("VPC", "red", "spec: {isolation: Some}"), refused},
		"vpc selector":          {object("VPC", "red", "spec: {namespaces: {matchExpressions: [{key: a, operator: Like}]}}"), onlyGo},
		"block":                 {block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1, allocations: {10.128.0.65: {name: a, namespace: b}}, lent: {10.128.0.66: n2}"), valid},
		"block v6":              {block("pods.fd000010000000000000000000000040-122", "subnet: pods, cidr: 'fd00:10::40/122', node: n1"), valid},
		"block of other bits":   {block("pods.0a800040-27", "subnet: pods, cidr: 10.128.0.64/26, node: n1"), refused},
		"block of other subnet": {block("pads.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1"), refused},
		"block of other digits": {block("pods.0a800080-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1"), onlyGo},
		"block host bits":       {block("pods.0a800041-26", "subnet: pods, cidr: 10.128.0.65/26, node: n1"), refused},
		"block of multicast":    {block("pods.e0000000-26", "subnet: pods, cidr: 224.0.0.0/26, node: n1"), refused},
		"block without node":    {block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: ''"), refused},
		"allocation outside":    {block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1, allocations: {10.128.0.1: {name: a}}"), onlyGo},
		"nameless owner":        {block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1, allocations: {10.128.0.65: {name: ''}}"), refused},
		"lent and allocated":    {block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1, allocations: {10.128.0.65: {name: a}}, lent: {10.128.0.65: n2}"), onlyGo},
		"node":                  {object("NodeNetwork", "n1", "spec: {addresses: [172.30.0.11/24, 'fd00::11/64'], vtepMAC: '0a:58:0a:80:00:01', mtu: 1500, plane: linux}"), valid},
		"empty node":            {object("NodeNetwork", "n1", "spec: {}"), valid},
		"node address":          {object("NodeNetwork", "n1", "spec: {addresses: [172.30.0.11]}"), refused},
		"two node addresses":    {object("NodeNetwork", "n1", "spec: {addresses: [172.30.0.11/24, 172.31.0.11/24]}"), refused},
		"multicast MAC":         {object("NodeNetwork", "n1", "spec: {vtepMAC: '01:00:5e:00:00:01'}"), refused},
		"small MTU":             {object("NodeNetwork", "n1", "spec: {mtu: 100}"), refused},
		"plane":                 {object("NodeNetwork", "n1", "spec: {plane: windows}"), refused},
		"tenant":                {object("NetNamespace", "web", "spec: {vni: 16777215, global: true}"), valid},
		"vni 0":                 {object("NetNamespace", "web", "spec: {vni: 0}"), refused},
		"vni too large":         {object("NetNamespace", "web", "spec: {vni: 16777216}"), refused},
		"tenant name":           {object("NetNamespace", "we.b", "spec: {vni: 5}"), refused},
	} {
		t.Run(name, func(t *testing.T) { agree(t, resources, test.in, "", test.want) })
	}
}

func TestAgreementOnUpdate(t *testing.T) {
	const old = "cidrs: [10.128.0.0/14, 'fd00:10::/64']"
	oldBlock := block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1")
	resources := load(t)
	for name, test := range map[string]struct {
		old, now string
		want     verdict
	}{
		"nothing":            {subnet(old), subnet(old), valid},
		"cidr added":         {subnet(old), subnet("cidrs: ['fd00:10::/64', 10.1.0.0/16, 10.128.0.0/14]"), valid},
		"cidr removed":       {subnet(old), subnet("cidrs: [10.128.0.0/14]"), refused},
		"cidr changed":       {subnet(old), subnet("cidrs: [10.128.0.0/13, 'fd00:10::/64']"), refused},
		"vpc":                {subnet(old), subnet("vpc: red, " + old), refused},
		"vpc spelled out":    {subnet(old), subnet("vpc: default, " + old), valid},
		"transport":          {subnet(old), subnet("transport: Routed, " + old), refused},
		"encapsulation":      {subnet(old), subnet("encapsulation: CrossSubnet, " + old), valid},
		"block size":         {subnet(old), subnet("blockSize: {v4: 27}, " + old), refused},
		"block size spelled": {subnet(old), subnet("blockSize: {v4: 26}, " + old), valid},
		"nat":                {subnet(old), subnet("natOutgoing: false, " + old), valid},
		"block allocation":   {oldBlock, block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n1, allocations: {10.128.0.65: {name: a}}"), valid},
		"block node":         {oldBlock, block("pods.0a800040-26", "subnet: pods, cidr: 10.128.0.64/26, node: n2"), refused},
		"block cidr":         {oldBlock, block("pods.0a800040-26", "subnet: pods, cidr: 10.128.1.64/26, node: n1"), refused},
	} {
		t.Run(name, func(t *testing.T) { agree(t, resources, test.now, test.old, test.want) })
	}
}

func agree(t *testing.T, resources map[string]*resource, now, old string, want verdict) {
	t.Helper()
	kind, err := datastore.KindOf(decode(t, now))
	if err != nil {
		t.Fatal(err)
	}
	r, ok := resources[string(kind)]
	if !ok {
		t.Fatalf("no CRD for %s", kind)
	}
	server, golang := r.server(t, now, old), ours(t, now, old)
	if refusedByServer := want == refused; (len(server) > 0) != refusedByServer {
		t.Errorf("the API server says %v\nof %s", server.ToAggregate(), now)
	}
	if refusedByGo := want != valid; (len(golang) > 0) != refusedByGo {
		t.Errorf("Go says %v\nof %s", golang.ToAggregate(), now)
	}
	// Rules that end in an error instead of an answer are mistakes of ours.
	for _, err := range server {
		if strings.Contains(err.Error(), "rule evaluation error") || err.Type == field.ErrorTypeInternal {
			t.Errorf("a rule broke down: %v\nof %s", err, now)
		}
	}
}
