// Package openflow holds the rule language of Open vSwitch as plain values:
// flows, matches, actions, groups and meters. Renderers make them, the driver
// brings them into a switch, a simulator can walk packets over them and people
// read them as text.
//
// The package owns the meaning of those values and their two spellings:
//   - Flow.String prints what "ovs-ofctl -O OpenFlow15 dump-flows --no-stats
//     --no-names" (3.1) prints for the flow, ParseFlow reads that and what
//     "ovs-ofctl add-flows" reads. The same holds for groups and meters.
//   - The Append functions write OpenFlow 1.5 messages with the extensions that
//     Open vSwitch defines (registers, conntrack, conjunction, …), Decode reads
//     what a switch sends to a controller.
//   - Flow.Validate says whether the switch would take the flow, naming the
//     field or action that is wrong.
//
// Values are literals and compared field by field. A Match made with NewMatch is
// canonical; two flows that mean the same to the switch have the same text.
//
// Everything that comes from outside (texts, messages) may be anything: it gives
// an error, never a panic, and never more memory than a small multiple of its
// length.
//
// The package does no I/O and never looks at a host.
package openflow
