//! The exact set of permissions that a command line of `tenure elect` needs.

use super::args::{Elect, Mode};
use super::outlets::slice;
use crate::rbac::{self, Needs, Rule};

impl Elect {
    /// Returns the permissions for this command line, given the namespaces of its lock and its pod.
    pub(super) fn needs(&self, lock: &str, pod: &str) -> Needs {
        let mut needs = vec![(lock.to_owned(), self.lock_rules())];
        let pods = self.pod_rules();
        if !pods.is_empty() {
            rbac::extend(&mut needs, vec![(pod.to_owned(), pods)]);
        }
        if !self.dry_run {
            rbac::extend(&mut needs, self.election.needs_of_proofs(lock));
        }
        needs
    }

    fn lock_rules(&self) -> Vec<Rule> {
        let (kind, name) = (self.election.lock, &self.election.election);
        if self.dry_run {
            rbac::looking(kind, name)
        } else {
            let rules = rbac::taking_part(kind, name, &[]);
            self.announce.add_rules(rules)
        }
    }

    /// Returns the rules for routing, and for the readiness of the candidate's pod.
    fn pod_rules(&self) -> Vec<Rule> {
        let route = &self.route;
        let mut rules = Vec::new();
        let (label, service) = (route.label.is_some(), route.service.is_some());
        let for_life = self.mode == Mode::ForLife;
        let verbs = [
            ("get", self.health.wait_ready),
            ("list", !self.dry_run && (label || for_life)),
            ("patch", !self.dry_run && (label || service)),
            ("watch", !self.dry_run && for_life),
        ];
        let verbs = verbs.into_iter().filter(|(_, needed)| *needed);
        let verbs: Vec<&str> = verbs.map(|(verb, _)| verb).collect();
        if !verbs.is_empty() {
            rules.push(Rule::any("", "pods", verbs));
        }
        if self.dry_run {
            return rules;
        }
        if route.readiness_gate.is_some() {
            rules.push(Rule::any("", "pods/status", vec!["patch"]));
        }
        if let Some(service) = &route.service {
            rules.push(Rule::named("", "services", vec!["get", "patch"], service));
        }
        if let Some(service) = &route.endpointslice {
            if route.service.as_ref() != Some(service) {
                rules.push(Rule::named("", "services", vec!["get"], service));
            }
            let (group, slices) = ("discovery.k8s.io", "endpointslices");
            let name = slice::name_of(service);
            rules.push(Rule::named(group, slices, vec!["get", "update"], &name));
            rules.push(Rule::any(group, slices, vec!["create"]));
        }
        rules
    }
}
