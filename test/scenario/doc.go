// Package scenario holds small clusters as text, and what Fairlead makes of them:
// objects in, the intent of a node, the problems and the fate of packets out.
//
// Each testdata/*.txtar is read from the top. Its files are
//
//	world, change   objects, one a line; "- KIND NAME" removes one
//	policies        NetworkPolicies and ClusterNetworkPolicies, as YAML
//	ask             questions, one a line
//	want            all answers, in order; go test -update writes them
//
// The objects:
//
//	node NAME [ADDRESS/BITS …] [mtu=N] [gone]      a NodeNetwork, and a Node unless gone
//	vpc NAME [vni=N] [age=N] [tenant] [select=KEY=VALUE[|VALUE…]]
//	namespace NAME [KEY=VALUE …]
//	tenant NAMESPACE VNI [global]
//	subnet NAME CIDR … [vpc=NAME] [age=N] [routed|underlay|crosssubnet] [nonat]
//	block SUBNET CIDR NODE                         named SUBNET.CIDR
//	lend SUBNET ADDRESS NODE
//	tunnel NODE SUBNET ADDRESS …
//	pod NAMESPACE/NAME NODE SUBNET ADDRESS … [KEY=VALUE …] [ports=[NAME:]PORT[/PROTOCOL],…]
//	                                               listens on TCP 80 unless ports are given
//	hostpod NAMESPACE/NAME NODE                    in the host's network
//
// The questions:
//
//	intent NODE                         the intent, whole
//	routes NODE                         its routes only
//	lists NODE                          what policies come to there: the ports that have
//	                                    lists, the lists, and the sets that they use
//	problems NODE                       what is wrong, as the node sees it
//	probe FROM TO [4|6]                 pod to pod, TCP 80: the oracle's verdict
//	packet FROM SOURCE DESTINATION      UDP; FROM is a pod, node/NAME or outside/ENTRY
//	flow FROM TO PORT[/PROTOCOL]        may FROM begin a flow to TO, a pod or an address,
//	                                    and which policy says so; the sender has, outside,
//	                                    an address of documentation (RFC 5737, RFC 3849)
//
// Whatever is asked, each node's intent is valid, what is compiled from the cache
// equals what is compiled anew, and the plane in memory does with each packet and flow
// what the oracle permits.
package scenario
