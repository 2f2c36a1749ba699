// Package ociarchive writes container images as OCI archives (OCI image layout 1.0 in a
// tar), without a container engine and without a registry. The same content gives the
// same bytes. Every container runtime imports such a file: "ctr -n k8s.io images import",
// "podman load", "skopeo copy oci-archive:".
//
// A Tree is the file system of one layer; Write puts images, which may share trees, into
// one archive. The package never runs what it packs and reads nothing but what it is given.
package ociarchive
