//! OpenFlow 1.5 and Nicira extensions: fields, matches, actions, messages, text form, connection
