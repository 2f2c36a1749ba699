// Empty is the baseline of BenchmarkCall: what it costs to start a Go program.
package main

func main() {}
