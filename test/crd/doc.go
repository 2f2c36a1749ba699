// Package crd holds the CRDs in deploy/crds against the Go validation of
// api/v1alpha1, with the API server's own schema and CEL code.
package crd
