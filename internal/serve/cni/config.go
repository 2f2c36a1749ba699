package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/fairlead-sdn/fairlead/internal/serve/attach"
	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
)

// config is one plugin's network configuration (CNI specification 1.1.0, sections 1
// and 3), read as far as Fairlead uses it.
type config struct {
	version string
	name    string
	dns     types.DNS
	// standalone and subnet are Fairlead's own keys.
	standalone bool
	subnet     string
	// ips are those of the runtime's capability "ips".
	ips []netip.Addr
	// previous is prevResult in the newest version; nil if there is none.
	previous *types100.Result
	// valid are the attachments that GC must keep; nil if the key is missing.
	valid []attach.Key
}

// known keys that Fairlead accepts and has no use for: the specification's, those
// that are well known, and what runtimes add.
var ignoredKeys = []string{"cniVersions", "capabilities", "args", "ipam", "ipMasq", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"}

// parseConfig reads a configuration. Everything that it says to be wrong is a
// cniapi.Error in the version of the configuration as far as that is known.
//
// Every command checks the version, the name and the type. Only ADD reads the rest
// strictly: it is where a person learns that a key is misspelt, and no other
// command may fail because of it.
func parseConfig(command cniapi.Command, data []byte) (*config, error) {
	keys := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, refuse(cniapi.CodeDecode, err, "the network configuration on standard input is not a JSON object")
	}
	c := &config{}
	if err := c.head(command, keys); err != nil {
		return c, err
	}
	switch command {
	case cniapi.Add:
		return c, c.add(keys)
	case cniapi.Check:
		return c, c.previousResult(keys["prevResult"])
	case cniapi.GC:
		return c, c.validAttachments(keys)
	}
	return c, nil
}

// head reads what every command needs.
func (c *config) head(command cniapi.Command, keys map[string]json.RawMessage) error {
	var version, kind string
	if err := decode(keys, "cniVersion", &version); err != nil || version == "" {
		return refuse(cniapi.CodeDecode, err, "the network configuration has no cniVersion; Fairlead speaks %s", strings.Join(cniapi.Versions(), ", "))
	}
	if !slices.Contains(cniapi.Versions(), version) {
		return refuse(cniapi.CodeIncompatibleVersion, nil, "cniVersion %q is none that Fairlead speaks: %s", shorten(version), strings.Join(cniapi.Versions(), ", "))
	}
	c.version = version
	if since, ok := introduced[command]; ok && slices.Index(cniapi.Versions(), version) < slices.Index(cniapi.Versions(), since) {
		return refuse(cniapi.CodeIncompatibleVersion, nil, "%s exists since version %s of CNI, and the network configuration says cniVersion %s", command, since, version)
	}
	if err := decode(keys, "name", &c.name); err != nil {
		return err
	}
	if !isNetworkName(c.name) {
		return refuse(cniapi.CodeInvalidConfig, nil, "the network configuration's name %q is not letters, digits, '_', '.' and '-', the first a letter or digit", shorten(c.name))
	}
	if err := decode(keys, "type", &kind); err != nil {
		return err
	}
	if kind == "" || strings.ContainsAny(kind, `/\`) {
		return refuse(cniapi.CodeInvalidConfig, nil, "the network configuration's type %q is no name of a plugin", shorten(kind))
	}
	return nil
}

// introduced says since when commands exist. ADD and DEL always did.
var introduced = map[cniapi.Command]string{cniapi.Check: "0.4.0", cniapi.GC: "1.1.0", cniapi.Status: "1.1.0"}

// add reads all keys and refuses those that nobody has defined.
func (c *config) add(keys map[string]json.RawMessage) error {
	for _, key := range sortedKeys(keys) {
		var err error
		switch key {
		case "cniVersion", "name", "type":
		case "standalone":
			err = decode(keys, key, &c.standalone)
		case "subnet":
			err = decode(keys, key, &c.subnet)
		case "dns":
			err = decode(keys, key, &c.dns)
		case "runtimeConfig":
			err = c.runtimeConfig(keys)
		case "prevResult":
			err = c.previousResult(keys[key])
		default:
			if !slices.Contains(ignoredKeys, key) && !strings.HasPrefix(key, "cni.dev/") {
				err = refuse(cniapi.CodeUnsupportedField, nil, "the network configuration has the unknown key %q: %s; Fairlead's own keys are standalone and subnet", shorten(key), shorten(string(keys[key])))
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// runtimeConfig reads the capability "ips" (CNI conventions): addresses, with or
// without a prefix length, which has no meaning here. Others are not ours.
func (c *config) runtimeConfig(keys map[string]json.RawMessage) error {
	var r struct {
		IPs []string `json:"ips"`
	}
	if err := decode(keys, "runtimeConfig", &r); err != nil {
		return err
	}
	for _, text := range r.IPs {
		host, _, _ := strings.Cut(text, "/")
		a, err := netip.ParseAddr(host)
		if err != nil || len(c.ips) > 1 {
			return refuse(cniapi.CodeInvalidConfig, err, "runtimeConfig.ips of the network configuration holds %q; it takes one IPv4 address, one IPv6 address, or both", shorten(text))
		}
		c.ips = append(c.ips, a.Unmap())
	}
	slices.SortFunc(c.ips, netip.Addr.Compare) // IPv4 first
	return nil
}

// previousResult reads prevResult, in the configuration's version.
func (c *config) previousResult(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	fields := map[string]json.RawMessage{}
	err := json.Unmarshal(raw, &fields)
	if err == nil {
		err = noNulls(fields)
	}
	if err == nil {
		// Results of old versions need not say their version: it is the
		// configuration's.
		fields["cniVersion"], _ = json.Marshal(c.version)
		raw, err = json.Marshal(fields)
	}
	var previous types.Result
	if err == nil {
		previous, err = create.Create(c.version, raw)
	}
	if err == nil {
		c.previous, err = types100.NewResultFromResult(previous)
	}
	if err != nil {
		return refuse(cniapi.CodeInvalidConfig, err, "prevResult of the network configuration is no result of CNI %s", c.version)
	}
	return nil
}

// noNulls refuses lists with holes, on which the library's converters panic.
func noNulls(fields map[string]json.RawMessage) error {
	for key, raw := range fields {
		var list []json.RawMessage
		if json.Unmarshal(raw, &list) != nil {
			continue // no list: the library says what it should be
		}
		for _, element := range list {
			if string(element) == "null" {
				return fmt.Errorf("the list %s holds null", shorten(key))
			}
		}
	}
	return nil
}

func (c *config) validAttachments(keys map[string]json.RawMessage) error {
	const key = "cni.dev/valid-attachments"
	if _, ok := keys[key]; !ok {
		return refuse(cniapi.CodeInvalidConfig, nil, "GC needs the key %s in the network configuration", key)
	}
	var list []struct {
		ContainerID string `json:"containerID"`
		IfName      string `json:"ifname"`
	}
	if err := decode(keys, key, &list); err != nil {
		return err
	}
	c.valid = make([]attach.Key, 0, len(list))
	for _, a := range list {
		c.valid = append(c.valid, attach.Key{ContainerID: a.ContainerID, Interface: a.IfName})
	}
	return nil
}

// decode reads one key, if it is there.
func decode(keys map[string]json.RawMessage, key string, into any) error {
	raw, ok := keys[key]
	if !ok {
		return nil
	}
	if err := json.NewDecoder(bytes.NewReader(raw)).Decode(into); err != nil {
		return refuse(cniapi.CodeInvalidConfig, err, "the network configuration's key %s is %s", key, shorten(string(raw)))
	}
	return nil
}

func sortedKeys(keys map[string]json.RawMessage) []string {
	list := make([]string, 0, len(keys))
	for k := range keys {
		list = append(list, k)
	}
	slices.Sort(list)
	return list
}

func isNetworkName(s string) bool {
	return s != "" && isAlnum(rune(s[0])) && !strings.ContainsFunc(s, func(c rune) bool { return !isAlnum(c) && c != '_' && c != '.' && c != '-' })
}

func isAlnum(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// refuse makes the error that a runtime gets.
func refuse(code cniapi.Code, cause error, format string, args ...any) error {
	e := cniapi.Error{Code: code, Msg: oneLine(fmt.Sprintf(format, args...))}
	if cause != nil {
		e.Details = cause.Error()
	}
	return e
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// shorten keeps a hostile megabyte out of a message.
func shorten(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
