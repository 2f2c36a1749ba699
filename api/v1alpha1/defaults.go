package v1alpha1

// The values that absent fields take.
const (
	// DefaultVPCName is the VPC that the controller creates.
	DefaultVPCName = "default"
	// DefaultSubnetName is the Subnet that the controller creates in it.
	DefaultSubnetName = "default"
	// DefaultBlockSizeV4 and DefaultBlockSizeV6 are prefix lengths of 64 addresses.
	DefaultBlockSizeV4 = 26
	DefaultBlockSizeV6 = 122
)

// DefaultVPC fills in what the CRD's defaults fill in.
func DefaultVPC(v *VPC) {
	if v.Spec.Isolation == "" {
		v.Spec.Isolation = IsolationNone
	}
}

// DefaultSubnet fills in absent fields. The encapsulation depends on the
// transport, which no CRD default can say: whoever reads a Subnet from an API
// server calls this too.
func DefaultSubnet(s *Subnet) {
	spec := &s.Spec
	if spec.VPC == "" {
		spec.VPC = DefaultVPCName
	}
	if spec.Transport == "" {
		spec.Transport = TransportOverlay
	}
	if spec.Encapsulation == "" {
		spec.Encapsulation = EncapsulationNone
		if spec.Transport == TransportOverlay {
			spec.Encapsulation = EncapsulationVXLAN
		}
	}
	if spec.BlockSize.V4 == 0 {
		spec.BlockSize.V4 = DefaultBlockSizeV4
	}
	if spec.BlockSize.V6 == 0 {
		spec.BlockSize.V6 = DefaultBlockSizeV6
	}
	if spec.NATOutgoing == nil {
		yes := true
		spec.NATOutgoing = &yes
	}
}
