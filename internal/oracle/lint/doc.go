// Package lint finds rules of policies that can never match, and so were surely not
// meant: it says nothing of what cannot be read, which oracle.Model.PolicyProblems does.
// It is pure.
package lint
