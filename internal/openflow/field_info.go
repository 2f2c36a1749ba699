package openflow

// fieldInfo is one row of fieldTable.
type fieldInfo struct {
	name      string
	match     string // in a match, where that differs
	nxm       string
	bits      uint8
	size      uint8
	kind      valueKind
	class     uint16
	num       uint8
	need      prerequisite
	readOnly  bool
	exactOnly bool
}

type fieldAlias struct {
	name  string
	field Field
}

// valueKind is how the values of a field are spelled.
type valueKind uint8

const (
	kindHex valueKind = iota
	kindHex4
	kindDec
	kindMAC
	kindIP4
	kindIP6
	kindPort
	kindVLAN
	kindCTState
	kindTCPFlags
	kindTunFlags
	kindFrag
)

// prerequisite is what a packet must be for a field to exist.
type prerequisite uint8

const (
	needNothing prerequisite = iota
	needARP
	needIPv4
	needIPv6
	needIP
	needTCP
	needUDP
	needSCTP
	needICMP
	needICMPv6
	needND
	needNDSolicit
	needNDAdvert
	needCT
	needCT4
	needCT6
	needCTPorts
	// needAction is a field that only actions know.
	needAction
)

// Classes of OXM headers (OpenFlow 1.5.1, 7.2.3.3, and Open vSwitch).
const (
	classNXM0       = 0x0000
	classNXM        = 0x0001
	classND         = 0x1000
	classBasic      = 0x8000
	classPacketRegs = 0x8001
)

// Experimenters (vendors) whose extensions are used.
const (
	vendorNicira    = 0x00002320
	vendorNetronome = 0x0000154d
	vendorONF       = 0x4f4e4600
)
