package datastore

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMeta checks names, labels, annotations and owner references. Finalizers
// are refused: this datastore removes objects at once, so it could not keep the
// promise that a finalizer is.
func validateMeta(r *Resource, o, old Object) field.ErrorList {
	path := field.NewPath("metadata")
	if len(o.GetFinalizers()) > 0 {
		return field.ErrorList{field.Forbidden(path.Child("finalizers"), "finalizers are not supported: objects are deleted at once")}
	}
	errs := apivalidation.ValidateObjectMetaAccessor(o, r.Namespaced, r.validName, path)
	if old != nil {
		errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(o, old, path)...)
	}
	return errs
}

func validateSelector(s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path)
}

func validatePort(port int32, path *field.Path) field.ErrorList {
	if port < 1 || port > 65535 {
		return field.ErrorList{field.Invalid(path, port, "must be between 1 and 65535")}
	}
	return nil
}

func validateProtocol(p corev1.Protocol, path *field.Path) field.ErrorList {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	}
	return field.ErrorList{field.NotSupported(path, p, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})}
}
