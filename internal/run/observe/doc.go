// Package observe holds the Prometheus metrics of a node's agent, and the HTTP
// handler that serves them with the node's health. Metrics are named
// fairlead_<component>_<what>_<unit>, and their labels are bounded: subsystems,
// commands, reasons, Subnets; never pods or addresses.
package observe
