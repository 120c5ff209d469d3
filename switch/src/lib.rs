//! The switching engine: OpenFlow tables, classifier, translation, flow cache, conntrack and NAT, tunnels
