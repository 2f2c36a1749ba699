// Package worldtest makes worlds for tests: consistent clusters (Draw), policies for
// them (DrawPolicies), sequences of arbitrary changes with objects as bad as they
// come (Wild), and large ones for benchmarks (Large, LargePolicies).
//
// It is imported by tests only.
package worldtest
