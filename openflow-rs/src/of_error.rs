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
    /// OFPBRC_BAD_VERSION.
    RequestBadVersion = (1, 0),
    /// OFPBRC_BAD_TYPE: not a message of this kind.
    RequestBadType = (1, 1),
    /// OFPBRC_BAD_MULTIPART.
    RequestBadMultipart = (1, 2),
    /// OFPBRC_MULTIPART_BUFFER_OVERFLOW.
    MultipartOverflow = (1, 13),
    /// OFPBRC_BAD_EXPERIMENTER.
    RequestBadExperimenter = (1, 3),
    /// OFPBRC_BAD_EXP_TYPE: what the request is about does not exist.
    RequestBadSubtype = (1, 4),
    /// OFPBRC_EPERM.
    RequestNotPermitted = (1, 5),
    /// OFPBRC_BAD_LEN.
    RequestBadLength = (1, 6),
    /// OFPBRC_BUFFER_UNKNOWN.
    RequestBufferUnknown = (1, 8),
    /// OFPBRC_IS_SLAVE: the controller is secondary.
    RequestIsSecondary = (1, 10),
    /// OFPBRC_BAD_PORT.
    RequestBadPort = (1, 11),
    /// OFPBRC_PIPELINE_FIELDS_ONLY.
    RequestPipelineFieldsOnly = (1, 17),
    /// OFPBAC_BAD_TYPE: the action is not allowed here.
    ActionBadType = (2, 0),
    /// OFPBAC_BAD_LEN.
    ActionBadLength = (2, 1),
    /// OFPBAC_BAD_EXPERIMENTER.
    ActionBadExperimenter = (2, 2),
    /// OFPBAC_BAD_EXP_TYPE.
    ActionBadExperimenterType = (2, 3),
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
    /// OFPBIC_UNKNOWN_INST.
    InstructionUnknown = (3, 0),
    /// OFPBIC_BAD_TABLE_ID.
    InstructionBadTable = (3, 2),
    /// OFPBIC_BAD_EXPERIMENTER.
    InstructionBadExperimenter = (3, 5),
    /// OFPBIC_BAD_LEN.
    InstructionBadLength = (3, 7),
    /// OFPBIC_DUP_INST.
    InstructionDuplicate = (3, 9),
    /// OFPBMC_BAD_TYPE.
    MatchBadType = (4, 0),
    /// OFPBMC_BAD_LEN.
    MatchBadLength = (4, 1),
    /// OFPBMC_BAD_WILDCARDS.
    MatchBadWildcards = (4, 5),
    /// OFPBMC_BAD_FIELD.
    MatchBadField = (4, 6),
    /// OFPBMC_BAD_VALUE.
    MatchBadValue = (4, 7),
    /// OFPBMC_BAD_MASK.
    MatchBadMask = (4, 8),
    /// OFPBMC_BAD_PREREQ.
    MatchBadPrerequisite = (4, 9),
    /// OFPBMC_DUP_FIELD.
    MatchDuplicateField = (4, 10),
    /// OFPFMFC_TABLE_FULL.
    FlowModTableFull = (5, 1),
    /// OFPFMFC_BAD_TABLE_ID.
    FlowModBadTable = (5, 2),
    /// OFPFMFC_OVERLAP.
    FlowModOverlap = (5, 3),
    /// OFPFMFC_BAD_COMMAND.
    FlowModBadCommand = (5, 6),
    /// OFPFMFC_BAD_FLAGS.
    FlowModBadFlags = (5, 7),
    /// OFPGMFC_GROUP_EXISTS.
    GroupModExists = (6, 0),
    /// OFPGMFC_INVALID_GROUP.
    GroupModInvalidGroup = (6, 1),
    /// OFPGMFC_UNKNOWN_GROUP.
    GroupModUnknownGroup = (6, 8),
    /// OFPGMFC_BAD_TYPE.
    GroupModBadType = (6, 10),
    /// OFPGMFC_BAD_COMMAND.
    GroupModBadCommand = (6, 11),
    /// OFPGMFC_BAD_BUCKET.
    GroupModBadBucket = (6, 12),
    /// OFPGMFC_UNKNOWN_BUCKET.
    GroupModUnknownBucket = (6, 15),
    /// OFPGMFC_BUCKET_EXISTS.
    GroupModBucketExists = (6, 16),
    /// OFPPMFC_BAD_PORT.
    PortModBadPort = (7, 0),
    /// OFPPMFC_BAD_HW_ADDR.
    PortModBadAddress = (7, 1),
    /// OFPTMFC_BAD_CONFIG.
    TableModBadConfig = (8, 1),
    /// OFPTMFC_EPERM.
    TableModNotPermitted = (8, 2),
    /// OFPQOFC_BAD_PORT.
    QueueBadPort = (9, 0),
    /// OFPQOFC_BAD_QUEUE.
    QueueBadQueue = (9, 1),
    /// OFPSCFC_BAD_FLAGS.
    SwitchConfigBadFlags = (10, 0),
    /// OFPRRFC_STALE: the generation id is older than one that was seen.
    RoleStale = (11, 0),
    /// OFPRRFC_BAD_ROLE.
    RoleUnknown = (11, 2),
    /// OFPMMFC_METER_EXISTS.
    MeterModExists = (12, 1),
    /// OFPMMFC_INVALID_METER.
    MeterModInvalidMeter = (12, 2),
    /// OFPMMFC_UNKNOWN_METER.
    MeterModUnknownMeter = (12, 3),
    /// OFPMMFC_BAD_COMMAND.
    MeterModBadCommand = (12, 4),
    /// OFPMMFC_BAD_FLAGS.
    MeterModBadFlags = (12, 5),
    /// OFPMMFC_BAD_RATE.
    MeterModBadRate = (12, 6),
    /// OFPMMFC_BAD_BAND.
    MeterModBadBand = (12, 8),
    /// OFPTFFC_EPERM.
    TableFeaturesNotPermitted = (13, 5),
    /// OFPBPC_BAD_TYPE.
    PropertyBadType = (14, 0),
    /// OFPBPC_BAD_LEN.
    PropertyBadLength = (14, 1),
    /// OFPBPC_BAD_VALUE.
    PropertyBadValue = (14, 2),
    /// OFPACFC_INVALID.
    AsyncConfigInvalid = (15, 0),
    /// OFPACFC_UNSUPPORTED.
    AsyncConfigUnsupported = (15, 1),
    /// OFPMOFC_UNKNOWN: it failed for another reason.
    FlowMonitorUnknown = (16, 0),
    /// OFPMOFC_MONITOR_EXISTS.
    FlowMonitorExists = (16, 1),
    /// OFPMOFC_UNKNOWN_MONITOR.
    FlowMonitorUnknownMonitor = (16, 3),
    /// OFPMOFC_BAD_COMMAND.
    FlowMonitorBadCommand = (16, 4),
    /// OFPMOFC_BAD_FLAGS.
    FlowMonitorBadFlags = (16, 5),
    /// OFPBFC_BAD_ID.
    BundleBadId = (17, 2),
    /// OFPBFC_BUNDLE_CLOSED.
    BundleClosed = (17, 4),
    /// OFPBFC_BAD_TYPE.
    BundleBadType = (17, 6),
    /// OFPBFC_BAD_FLAGS.
    BundleBadFlags = (17, 7),
    /// OFPBFC_MSG_BAD_LEN.
    BundleMessageBadLength = (17, 8),
    /// OFPBFC_MSG_BAD_XID.
    BundleMessageBadXid = (17, 9),
    /// OFPBFC_MSG_UNSUP.
    BundleMessageUnsupported = (17, 10),
    /// OFPBFC_MSG_TOO_MANY.
    BundleTooManyMessages = (17, 12),
    /// OFPBFC_MSG_FAILED.
    BundleMessageFailed = (17, 13),
    /// OFPBFC_TIMEOUT: nothing was added to it for too long.
    BundleTimeout = (17, 14),
    /// NXBAC_BAD_CONJUNCTION.
    ActionBadConjunction = (0xffff, 15),
    /// NXTTMFC_BAD_COMMAND.
    OptionMapBadCommand = (0xffff, 16),
    /// NXTTMFC_BAD_OPT_LEN.
    OptionMapBadOptionLength = (0xffff, 17),
    /// NXTTMFC_BAD_FIELD_IDX.
    OptionMapBadField = (0xffff, 18),
    /// NXTTMFC_TABLE_FULL.
    OptionMapFull = (0xffff, 19),
    /// NXTTMFC_ALREADY_MAPPED.
    OptionMapAlreadyMapped = (0xffff, 20),
    /// NXTTMFC_DUP_ENTRY.
    OptionMapDuplicate = (0xffff, 21),
    /// NXST_NOT_CONFIGURED: what counters are asked of is not configured.
    StatsNotConfigured = (0xffff, 36),
    /// NXTTMFC_INVALID_TLV_DEL: a flow uses the option.
    OptionMapInUse = (0xffff, 38),
    /// NXBAC_BAD_HEADER_TYPE: no such packets in `encap` or `decap`.
    ActionBadHeaderType = (0xffff, 39),
    /// NXBAC_UNKNOWN_ED_PROP.
    ActionUnknownHeaderProperty = (0xffff, 40),
    /// NXBAC_BAD_ED_PROP.
    ActionBadHeaderProperty = (0xffff, 41),
    /// NXFMFC_INVALID_TLV_FIELD: the field is not in the option map.
    FlowModInvalidTlvField = (0xffff, 37),
}

impl OfError {
    /// The error with what is wrong, for people.
    pub fn because(self, detail: impl Into<String>) -> DecodeError {
        DecodeError { error: self, detail: detail.into() }
    }

    /// Whether an error is this one.
    pub fn is(self, e: &DecodeError) -> bool {
        e.error == self
    }
}
