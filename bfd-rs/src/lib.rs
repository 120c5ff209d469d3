//! BFD (RFC 5880, 5881, 5882, 5883): packets, state machine, sessions; sans I/O
