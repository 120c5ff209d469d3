//! Errors that a switch sends to controllers (OpenFlow 1.5.1 section 7.5.4), by name.

use crate::wire::DecodeError;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = ($error_type:literal, $code:literal),)*) => {
        /// An error by its name; see [`OfError::because`] for the message.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum OfError { $($(#[$doc])* $name,)* }

        impl OfError {
            /// Type and code on the wire. Type 0xffff stands for Nicira's errors.
            pub const fn numbers(self) -> (u16, u16) {
                match self { $(OfError::$name => ($error_type, $code),)* }
            }
        }
    };
}

errors! {
    /// OFPBRC_BAD_TYPE: not a message of this kind.
    RequestBadType = (1, 1),
    /// OFPBRC_BAD_EXP_TYPE: what the request is about does not exist.
    RequestBadSubtype = (1, 4),
    /// OFPBRC_EPERM.
    RequestNotPermitted = (1, 5),
    /// OFPBRC_BUFFER_UNKNOWN.
    RequestBufferUnknown = (1, 8),
    /// OFPBAC_BAD_TYPE: the action is not allowed here.
    ActionBadType = (2, 0),
    /// OFPBAC_BAD_OUT_PORT.
    ActionBadOutPort = (2, 4),
    /// OFPBAC_BAD_ARGUMENT.
    ActionBadArgument = (2, 5),
    /// OFPBAC_BAD_OUT_GROUP.
    ActionBadOutGroup = (2, 9),
    /// OFPBAC_MATCH_INCONSISTENT.
    ActionMatchInconsistent = (2, 10),
    /// OFPBAC_BAD_TAG.
    ActionBadTag = (2, 12),
    /// OFPBAC_BAD_SET_LEN.
    ActionBadSetLength = (2, 14),
    /// OFPBAC_BAD_SET_ARGUMENT.
    ActionBadSetArgument = (2, 15),
    /// OFPBIC_BAD_TABLE_ID.
    InstructionBadTable = (3, 2),
    /// OFPFMFC_TABLE_FULL.
    FlowModTableFull = (5, 1),
    /// OFPFMFC_BAD_TABLE_ID.
    FlowModBadTable = (5, 2),
    /// OFPFMFC_OVERLAP.
    FlowModOverlap = (5, 3),
    /// OFPFMFC_BAD_FLAGS.
    FlowModBadFlags = (5, 7),
    /// OFPGMFC_GROUP_EXISTS.
    GroupModExists = (6, 0),
    /// OFPGMFC_INVALID_GROUP.
    GroupModInvalidGroup = (6, 1),
    /// OFPGMFC_UNKNOWN_GROUP.
    GroupModUnknownGroup = (6, 8),
    /// OFPGMFC_BAD_BUCKET.
    GroupModBadBucket = (6, 12),
    /// OFPGMFC_UNKNOWN_BUCKET.
    GroupModUnknownBucket = (6, 15),
    /// OFPGMFC_BUCKET_EXISTS.
    GroupModBucketExists = (6, 16),
    /// OFPMMFC_METER_EXISTS.
    MeterModExists = (12, 1),
    /// OFPMMFC_INVALID_METER.
    MeterModInvalidMeter = (12, 2),
    /// OFPMMFC_UNKNOWN_METER.
    MeterModUnknownMeter = (12, 3),
    /// OFPMMFC_BAD_FLAGS.
    MeterModBadFlags = (12, 5),
    /// OFPMMFC_BAD_RATE.
    MeterModBadRate = (12, 6),
    /// OFPMMFC_BAD_BAND.
    MeterModBadBand = (12, 8),
    /// OFPBPC_BAD_VALUE.
    PropertyBadValue = (14, 2),
    /// NXBAC_BAD_CONJUNCTION.
    ActionBadConjunction = (0xffff, 15),
    /// NXTTMFC_BAD_COMMAND.
    OptionMapBadCommand = (0xffff, 16),
    /// NXTTMFC_BAD_OPT_LEN.
    OptionMapBadOptionLength = (0xffff, 17),
    /// NXTTMFC_BAD_FIELD_IDX.
    OptionMapBadField = (0xffff, 18),
    /// NXTTMFC_ALREADY_MAPPED.
    OptionMapAlreadyMapped = (0xffff, 20),
    /// NXTTMFC_DUP_ENTRY.
    OptionMapDuplicate = (0xffff, 21),
    /// NXFMFC_INVALID_TLV_FIELD: the field is not in the option map.
    FlowModInvalidTlvField = (0xffff, 37),
}

impl OfError {
    /// The error with what is wrong, for people.
    pub fn because(self, detail: impl Into<String>) -> DecodeError {
        let (error_type, code) = self.numbers();
        DecodeError { error_type, code, detail: detail.into() }
    }

    /// Whether an error is this one.
    pub fn is(self, e: &DecodeError) -> bool {
        (e.error_type, e.code) == self.numbers()
    }
}
