package openflow

// For the tests that drive a real switch from outside of the package.
var (
	DrawFlow = drawFlow
	Compared = compare
)
