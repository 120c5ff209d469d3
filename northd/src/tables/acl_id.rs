//! `ACL_ID`: numbers of access lists whose connections stay allowed when the list is gone (`options:persist-established`).

use crate::context::Ctx;
use crate::input::Read;
use crate::model::{Columns, RowKey};
use ovn_schema::{nb, sb};
use std::collections::BTreeSet;

/// The highest number.
const MAX: i64 = 32767;

/// The rows: one for each such list, under the list's own UUID, with the number that it has or the lowest free one.
pub fn run(ctx: &mut Ctx<'_, '_>) {
    let mut used = BTreeSet::new();
    let mut waiting = Vec::new();
    let lists = ctx.read(Read::PersistentAcls).persistent_acls().clone();
    for u in lists {
        if ctx.nb::<nb::Acl>(u).is_none() {
            continue;
        }
        match ctx.sb::<sb::AclId>(u) {
            Some(row) => {
                used.insert(row.id);
                put(ctx, u, row.id);
            }
            None => waiting.push(u),
        }
    }
    let mut free = (1..=MAX).filter(|n| !used.contains(n));
    for u in waiting {
        match free.next() {
            Some(id) => put(ctx, u, id),
            None => ctx.problem("Exhausted all ACL IDs: remove persist-established from some access lists"),
        }
    }
}

fn put(ctx: &mut Ctx<'_, '_>, acl: ovn_schema::Uuid, id: i64) {
    ctx.row(RowKey::new(sb::TableId::AclId, acl.to_string()), Columns::new().data("id", &id));
}
