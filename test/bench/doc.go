// Command bench measures Fairlead against baselines and prints a table of ratios.
//
//	go run ./test/bench [-bin DIR] [-only cni,path] [-quick] [-o FILE]
//
// Every figure that has a baseline is measured interleaved with it in one run, round
// by round, and so is the baseline with itself: that A/A ratio is the noise of the
// machine at that time. What is judged is the median and the CPU time, for a busy
// machine moves both least. A target that is missed is printed as MISS and is no
// failure; the exit status is 1 only if something could not be measured, and 2 if
// nothing could (arguments, privileges).
//
// It needs root and the built programs. All it changes is inside of network
// namespaces of its own and labs of its own names, which are gone when it ends.
// docs/benchmarks.md explains each figure.
package main
