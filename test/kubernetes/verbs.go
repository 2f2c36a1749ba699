package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// right is something that an account may do, or has done.
type right struct {
	account, group, resource, verb string
}

func (r right) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	return r.account + ": " + r.verb + " " + resource
}

// verbs compares what Fairlead's accounts have done since the cluster was started with what
// the manifest lets them do. After a full run (make kube-faults) the two are equal: it is an
// error if something was refused, or is granted and was not used.
func (c *cluster) verbs(manifest string, w io.Writer) error {
	raw, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	granted, err := grantedRights(string(raw))
	if err != nil {
		return err
	}
	log, err := os.Open(c.run("audit.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	used, refused, err := usedRights(log)
	if err != nil {
		return err
	}
	return compareRights(granted, used, refused, w)
}

// compareRights prints what differs, and tells whether that is as it should be.
func compareRights(granted, used, refused map[right]bool, w io.Writer) error {
	unused := 0
	for _, r := range sortedRights(granted) {
		if !used[r] {
			unused++
			fmt.Fprintln(w, "granted and not used:", r)
		}
	}
	wrong, early := 0, 0
	for _, r := range sortedRights(refused) {
		// An API server that has just started has not read its roles yet.
		if granted[r] && used[r] {
			early++
			continue
		}
		wrong++
		fmt.Fprintln(w, "refused:", r)
	}
	fmt.Fprintf(w, "%d rights are granted: %d were used (%d of them were refused for a moment: by an API server that was starting), %d were not; %d others were refused\n",
		len(granted), len(granted)-unused, early, unused, wrong)
	switch {
	case wrong > 0:
		return errors.New("something was refused: grant it in deploy/chart/templates/accounts.yaml, or do not ask for it")
	case unused > 0:
		return errors.New("something is granted that was not used: has there been a full run (make kube-faults)? Then remove it from deploy/chart/templates/accounts.yaml")
	}
	return nil
}

func sortedRights(m map[right]bool) []right {
	return slices.SortedFunc(maps.Keys(m), func(a, b right) int { return cmp.Compare(a.String(), b.String()) })
}

// role is what is read of Roles and ClusterRoles.
type role struct {
	Kind     string
	Metadata struct{ Name string }
	Rules    []struct{ APIGroups, Resources, Verbs []string }
}

func grantedRights(manifest string) (map[right]bool, error) {
	out := map[right]bool{}
	for _, document := range strings.Split(manifest, "\n---\n") {
		var r role
		if err := yaml.Unmarshal([]byte(document), &r); err != nil {
			return nil, fmt.Errorf("read the manifest: %w", err)
		}
		if r.Kind != "ClusterRole" && r.Kind != "Role" {
			continue
		}
		for _, rule := range r.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out[right{r.Metadata.Name, group, resource, verb}] = true
					}
				}
			}
		}
	}
	return out, nil
}

// auditEvent is what is read of the API server's audit log.
type auditEvent struct {
	Verb string
	User struct{ Username string }
	// ObjectRef is empty for what is no resource.
	ObjectRef      struct{ APIGroup, Resource, Subresource string }
	ResponseStatus struct{ Code int }
}

func usedRights(log io.Reader) (used, refused map[right]bool, err error) {
	used, refused = map[right]bool{}, map[right]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, nil, fmt.Errorf("read the audit log: %w", err)
		}
		if e.ObjectRef.Resource == "" {
			continue
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		r := right{e.User.Username[strings.LastIndexByte(e.User.Username, ':')+1:], e.ObjectRef.APIGroup, resource, e.Verb}
		if e.ResponseStatus.Code == 403 {
			refused[r] = true
		} else {
			used[r] = true
		}
	}
	return used, refused, lines.Err()
}
