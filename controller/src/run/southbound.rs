//! What the controller writes into the southbound database.

use super::state::Done;
use super::{Controller, milliseconds};
use crate::input::settings::Settings;
use crate::plan::{self, Plan};
use crate::{rows::chassis, rows::claims, rows::learned};
use ovn_schema::{Write, sb};
use std::time::{Duration, Instant};

impl Controller {
    pub(super) fn write_southbound(&mut self, s: &Settings) {
        let installed = self.is_installed();
        let now = Instant::now();
        self.realise(now);
        let unreached = self.in_line.uplinks.as_ref().map(|(_, u)| u.networks()).unwrap_or_default();
        let Some(l) = &self.sb else { return };
        if l.busy || !l.client.is_connected() {
            return;
        }
        let Some(schema) = l.client.schema() else { return };
        let mut plan = Plan::new(schema);
        let (input, lines) = (&self.input, &mut self.in_line);
        let switch = claims::Switch { installed, answers: self.takeover.switch_answers(now) };
        self.claims.reconcile(input, &self.presence, switch, now, &mut plan);
        self.claims.claimed_at(now).for_each(|port| self.takeover.claims(port));
        let (lost, asked) = (&unreached, &self.claims.asked());
        let own = (self.interfaces.plumbing(), input.own_rows(), lost.clone(), asked.clone(), self.features);
        lines.chassis.unless(own, &mut plan, |plan| {
            let here = chassis::Here { ovs: &self.ovs.db, settings: s, lost, asked, features: self.features };
            self.chassis_writer.reconcile(input, &here, plan);
        });
        self.virtual_ports.write(&self.input, now, milliseconds(), &mut plan);
        self.report_configuration(s, &mut plan);
        self.monitors.write(&self.input, &self.presence, now, &mut plan);
        self.write_learned_routes(&mut plan);
        self.activated.write(&self.input, &mut plan);
        self.aging.write(&self.input, &mut plan);
        learned::write(&self.input, &mut self.learned, (now, milliseconds()), &mut plan);
        let operations = self.sb_attempts.choose(plan, now);
        if self.claims.waits_for_switch() {
            self.ask_switch(now);
        }
        let Some(l) = self.sb.as_mut().filter(|_| !operations.is_empty()) else { return };
        l.busy = true;
        let (client, done, number) = (l.client.clone(), self.done_tx.clone(), l.number);
        tokio::spawn(async move {
            let r = plan::commit(client, operations).await;
            let _ = done.send(Done::Southbound(number, r));
        });
    }

    /// Takes note of the configuration whose flows are in the switch by now.
    pub(super) fn realise(&mut self, now: Instant) {
        while let Some(p) = self.pending_cfg.first().copied() {
            if p.sequence > self.installed {
                break;
            }
            self.pending_cfg.remove(0);
            if self.realised_cfg != Some((p.nb_cfg, p.timestamp)) {
                if self.realised_cfg.is_none_or(|(c, _)| c != p.nb_cfg) {
                    self.realised_at = milliseconds();
                }
                self.realised_cfg = Some((p.nb_cfg, p.timestamp));
                self.report_after = (self.report_delay > 0).then(|| now + Duration::from_secs(self.report_delay));
                if self.report_delay > 0 {
                    tracing::info!(target: "main", "Sleep for {} sec", self.report_delay);
                }
            }
        }
    }

    /// `nb_cfg` of this chassis, unless `SB_Global:options:enable_chassis_nb_cfg_update` says that nobody wants to know.
    fn report_configuration(&mut self, s: &Settings, plan: &mut Plan) {
        let global = self.input.sb.sb_global.values().next();
        let wanted = global.is_none_or(|g| ovn_schema::options::bool(&g.options, "enable_chassis_nb_cfg_update", true));
        let due = self.report_after.is_none_or(|t| Instant::now() >= t);
        if let Some((id, p)) = self.input.chassis_private(&s.system_id)
            && let Some((cfg, _)) = self.realised_cfg.filter(|(c, _)| *c != 0 && *c != p.nb_cfg)
            && wanted
            && due
        {
            let columns = [sb::ChassisPrivate::nb_cfg(&cfg), sb::ChassisPrivate::nb_cfg_timestamp(&self.realised_at)];
            plan.part("Chassis_Private:nb_cfg", cfg).txn.update_row(id, columns);
        }
    }

    /// Whether the operator wants this chassis taken out of the southbound database at `exit` (`ovn-cleanup-on-exit`).
    pub fn cleans_up(&self) -> bool {
        Settings::read(&self.ovs.db, &self.identity).map_or(true, |s| s.cleanup_on_exit)
    }

    /// Takes this chassis out of the southbound database.
    pub async fn clean_up(&mut self) {
        let Ok(s) = Settings::read(&self.ovs.db, &self.identity) else { return };
        let Some(l) = self.sb.as_ref().filter(|l| l.client.is_connected()) else { return };
        let Some(schema) = l.client.schema() else { return };
        let mut txn = ovsdb_rs::client::Transaction::new(schema);
        if let Some(me) = self.input.local.chassis {
            crate::rows::claims::release_all(&self.input.sb, me, &mut txn);
        }
        self.routing.forget(&self.input, &mut txn);
        chassis::remove(&self.input.sb, &s, &mut txn);
        let end = tokio::time::timeout(Duration::from_secs(5), l.client.commit(txn)).await;
        if !matches!(end, Ok(Ok(_))) {
            tracing::warn!(target: "main", "the chassis could not be taken out of the southbound database");
        }
        self.routing.clean_up().await;
        self.evpn.clean_up().await;
        self.clean_up_local(&s).await;
    }
}
