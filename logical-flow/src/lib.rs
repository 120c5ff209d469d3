//! The OVN logical flow language: expressions, actions, normalisation to matches
