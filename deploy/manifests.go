// Package deploy holds the manifests that programs of Fairlead apply by themselves. It reads
// nothing and promises nothing else.
package deploy

import _ "embed" // the manifest

// Uninstall is what takes Fairlead away from the nodes of a cluster (uninstall.yaml): the
// agents' ConfigMap, and a DaemonSet whose pods are ready when their nodes are clean.
//
//go:embed uninstall.yaml
var Uninstall string
