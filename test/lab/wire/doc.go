// Package wire sends packets that no honest socket sends, and sees which arrive: the
// headers of frames, injectors that send them from a namespace, and taps that note the
// tokens in what reaches one. It knows nothing of labs or scenarios.
package wire
