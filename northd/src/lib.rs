//! OVN northbound to southbound compiler
