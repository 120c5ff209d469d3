//! Derivation engine: units that read recorded views and return output rows
