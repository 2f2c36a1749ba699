package nftables

import "strings"

// keywords are the words that nft 1.0.6 refuses as the name of a chain or set,
// each with a space on both sides.
const keywords = " accept add ah all and arp auto-merge bridge cgroup chain comment comp constant continue counter cpu " +
	"create ct day dccp define delete describe device devices dnat drop dst dup dynamic ecn element " +
	"elements eq esp ether exists expires export exthdr fib flags flow flowtable flush frag fwd " +
	"gc-interval ge goto gt handle hbh hook hour ibriport ibrname icmp icmpv6 igmp iif iifgroup iifname " +
	"iiftype import include index inet insert interval ip ip6 ipsec jhash jump le limit list log lshift " +
	"lt map mark masquerade meta meter mh missing monitor ne netdev nftrace not notrack numgen obriport " +
	"obrname offload oif oifgroup oifname oiftype or osf pkttype policy position priority queue quota " +
	"random redefine redirect reject rename replace reset return rshift rt rt0 rt2 rtclassid rule ruleset " +
	"sctp secmark set size skgid skuid snat socket srh symhash synproxy table tcp th time timeout tproxy " +
	"type typeof udp udplite undefine vlan vmap xor xt "

// isKeyword says whether nft could not read a table with such a name in it.
func isKeyword(name string) bool { return strings.Contains(keywords, " "+name+" ") }
