//! What every Isthmus daemon shares: options, pidfile, log, control socket, signals
