package world

// pointer writes or reads a value that may be absent.
func pointer[T any](c *coder, p **T, fields func(*coder, *T)) {
	has := *p != nil
	c.bool(&has)
	if !has {
		return
	}
	if c.reading {
		*p = new(T)
	}
	fields(c, *p)
}

func (c *coder) selectorFields(s *Selector) {
	stringMap(c, &s.MatchLabels)
	list(c, &s.MatchExpressions, func(c *coder, r *Requirement) {
		c.string(&r.Key)
		c.string(&r.Operator)
		c.strings(&r.Values)
	})
}

func (c *coder) selector(s **Selector) { pointer(c, s, (*coder).selectorFields) }

func (c *coder) networkPolicy(p *NetworkPolicy) {
	c.string(&p.Namespace)
	c.string(&p.Name)
	c.string(&p.UID)
	c.selectorFields(&p.Pods)
	c.strings(&p.Types)
	list(c, &p.Ingress, (*coder).policyRule)
	list(c, &p.Egress, (*coder).policyRule)
}

func (c *coder) policyRule(r *PolicyRule) {
	list(c, &r.Peers, func(c *coder, p *PolicyPeer) {
		c.selector(&p.Pods)
		c.selector(&p.Namespaces)
		pointer(c, &p.Range, func(c *coder, b *PolicyRange) {
			c.string(&b.CIDR)
			c.strings(&b.Except)
		})
	})
	list(c, &r.Ports, func(c *coder, p *PolicyPort) {
		pointer(c, &p.Protocol, (*coder).string)
		pointer(c, &p.Port, func(c *coder, r *PortRef) {
			number(c, &r.By)
			number(c, &r.Number)
			c.string(&r.Name)
		})
		pointer(c, &p.EndPort, number[int32])
	})
}

func (c *coder) clusterNetworkPolicy(p *ClusterNetworkPolicy) {
	c.string(&p.Name)
	c.string(&p.UID)
	c.string(&p.Tier)
	number(c, &p.Priority)
	c.selector(&p.Subject.Namespaces)
	pointer(c, &p.Subject.Pods, (*coder).namespacedPods)
	list(c, &p.Ingress, (*coder).clusterRule)
	list(c, &p.Egress, (*coder).clusterRule)
}

func (c *coder) namespacedPods(p *NamespacedPods) {
	c.selectorFields(&p.Namespaces)
	c.selectorFields(&p.Pods)
}

func (c *coder) clusterRule(r *ClusterRule) {
	c.string(&r.Name)
	c.string(&r.Action)
	list(c, &r.Peers, func(c *coder, p *ClusterPeer) {
		c.selector(&p.Namespaces)
		pointer(c, &p.Pods, (*coder).namespacedPods)
		c.selector(&p.Nodes)
		c.strings(&p.Networks)
		c.strings(&p.DomainNames)
	})
	list(c, &r.Protocols, func(c *coder, p *ClusterProtocol) {
		pointer(c, &p.TCP, (*coder).clusterPorts)
		pointer(c, &p.UDP, (*coder).clusterPorts)
		pointer(c, &p.SCTP, (*coder).clusterPorts)
		c.string(&p.NamedPort)
	})
}

func (c *coder) clusterPorts(p *ClusterPorts) {
	pointer(c, &p.Destination, func(c *coder, p *ClusterPort) {
		number(c, &p.Number)
		pointer(c, &p.Range, func(c *coder, r *PortRange) {
			number(c, &r.Start)
			number(c, &r.End)
		})
	})
}
