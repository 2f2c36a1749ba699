package cni

import (
	"strings"

	"github.com/fairlead-sdn/fairlead/internal/serve/cni/cniapi"
	"github.com/fairlead-sdn/fairlead/internal/world"
)

// podOf reads the pod out of CNI_ARGS, "KEY=VALUE;KEY=VALUE". It is the zero Owner
// if there is none. Keys that are not ours are other plugins'.
func podOf(args string) (world.Owner, error) {
	var pod world.Owner
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return world.Owner{}, refuse(cniapi.CodeInvalidEnvironment, nil, "CNI_ARGS: %q is not KEY=VALUE", shorten(pair))
		}
		valid := true
		switch key {
		case "K8S_POD_NAMESPACE":
			pod.Namespace, valid = value, isDNSName(value, 63)
		case "K8S_POD_NAME":
			pod.Name, valid = value, isDNSName(value, 253)
		case "K8S_POD_UID":
			pod.UID, valid = value, isUID(value)
		}
		if !valid {
			return world.Owner{}, refuse(cniapi.CodeInvalidEnvironment, nil, "CNI_ARGS: %s is %q, which Kubernetes never gives", key, shorten(value))
		}
	}
	return pod, nil
}

// isDNSName accepts a DNS subdomain (RFC 1123) of at most so many bytes, and nothing:
// a variable that is empty is one that is not set.
func isDNSName(s string, most int) bool {
	if s == "" {
		return true
	}
	if len(s) > most {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' }) {
			return false
		}
	}
	return true
}

// isUID accepts a UUID, the hash of a static pod's manifest, or nothing.
func isUID(s string) bool {
	return len(s) <= 128 && !strings.ContainsFunc(s, func(c rune) bool { return !isAlnum(c) && c != '-' && c != '_' && c != '.' })
}
