//! How does a memory take in the text of a request of a group?

use crate::memory::groups::{GroupKey, Groups};
use crate::memory::store::Memory;
use crate::memory::tenant::{Learned, Tenant, hash};

impl<L: Learned> Memory<L> {
    /// As [`add`](Self::add), of a request of this group.
    pub(crate) fn add_to_group(&self, tenant: &Tenant<L>, tokens: &[u32], group: GroupKey) {
        self.add(tenant, tokens);
        let _writing = self.begin_writing();
        self.change(tenant, |kept| {
            if kept.texts.of_hash(hash(tokens)).is_some() {
                kept.groups.add(group, hash(tokens));
            }
        });
        self.make_room(tenant, 0);
    }

    pub(crate) fn restore_groups(&self, tenant: &Tenant<L>, groups: &Groups) {
        let _writing = self.begin_writing();
        self.change(tenant, |kept| {
            if !kept.is_forgotten {
                kept.groups.absorb(groups);
            }
        });
        self.make_room(tenant, 0);
    }
}
