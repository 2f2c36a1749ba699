//go:build !failpoints

package main

// failpoints are for test builds only.
func failpoints() func(string) error { return nil }
