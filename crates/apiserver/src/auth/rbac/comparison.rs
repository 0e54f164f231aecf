//! Checks whether a set of rules grants everything that another set grants, at bounded cost.
//!
//! A rule stands for every combination of its verbs, groups, resources and names. A few kilobytes can stand for
//! billions of combinations, so they are not enumerated. Instead, the comparison narrows the rules verb by verb, group
//! by group and resource by resource. It skips a part that one of the remaining rules grants as a whole. It ends after
//! [`MOST_MISSING`] missing grants or [`MOST_STEPS`] steps.

use std::collections::HashSet;

use super::Rule;
use super::rule::{has, resource_covers, url_covers};

/// Number of missing grants after which the comparison ends.
pub(super) const MOST_MISSING: usize = 20;

/// Number of compared pairs of names after which the comparison ends: some tens of milliseconds.
const MOST_STEPS: usize = 5_000_000;

/// A comparison of wanted rules with the rules that a user has.
pub(super) struct Comparison<'a> {
    had: Vec<&'a Rule>,
    steps: usize,
    /// Single grants that are missing: one verb on one resource of one group with at most one name, or on one path.
    pub(super) missing: Vec<Rule>,
}

/// The comparison reached one of its limits.
struct Ended;

impl<'a> Comparison<'a> {
    pub(super) fn new(had: &'a [Rule]) -> Self {
        Self {
            had: had.iter().collect(),
            steps: 0,
            missing: Vec::new(),
        }
    }

    /// Whether the limit of steps is exceeded.
    pub(super) fn is_spent(&self) -> bool {
        self.steps > MOST_STEPS
    }

    /// Number of compared pairs of names.
    #[cfg(test)]
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// Adds to `missing` the grants of a rule that the user does not have. Returns false if the comparison ended early,
    /// so that more grants may be missing.
    pub(super) fn compare(&mut self, wanted: &Rule) -> bool {
        self.try_compare(wanted).is_ok()
    }

    fn try_compare(&mut self, wanted: &Rule) -> Result<(), Ended> {
        let (groups, resources) = (unique(&wanted.api_groups), unique(&wanted.resources));
        let (names, urls) = (
            unique(&wanted.resource_names),
            unique(&wanted.non_resource_urls),
        );
        if urls.is_empty() && self.one_covers(wanted)? {
            return Ok(());
        }
        for verb in unique(&wanted.verbs) {
            let had = self.narrow(&self.had.clone(), |rule| {
                (has(&rule.verbs, verb), rule.verbs.len())
            })?;
            for url in &urls {
                let covers =
                    |rule: &Rule| rule.non_resource_urls.iter().any(|u| url_covers(u, url));
                let found =
                    self.narrow(&had, |rule| (covers(rule), rule.non_resource_urls.len()))?;
                if found.is_empty() {
                    self.miss(Rule {
                        verbs: vec![verb.to_owned()],
                        non_resource_urls: vec![(*url).to_owned()],
                        ..Rule::default()
                    })?;
                }
            }
            for group in &groups {
                let had = self.narrow(&had, |rule| {
                    (has(&rule.api_groups, group), rule.api_groups.len())
                })?;
                // Fast path: a rule that grants all resources of the group.
                let whole = |rule: &&Rule| {
                    rule.resource_names.is_empty() && rule.resources.iter().any(|r| r == "*")
                };
                if had.iter().any(whole) {
                    continue;
                }
                for resource in &resources {
                    let found = self.narrow(&had, |rule| {
                        (covers_resource(rule, resource), rule.resources.len())
                    })?;
                    self.compare_names((verb, group, resource), &names, &found)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether a single rule grants everything that `wanted` grants. This check is fast for identical rules.
    fn one_covers(&mut self, wanted: &Rule) -> Result<bool, Ended> {
        let (mine, theirs): (Vec<&Rule>, usize) = (self.had.clone(), size(wanted));
        for rule in mine {
            self.spend(size(rule) + theirs)?;
            let names: HashSet<&String> = rule.resource_names.iter().collect();
            let (wanted_names, verbs) = (&wanted.resource_names, set(&rule.verbs));
            let (groups, resources) = (set(&rule.api_groups), set(&rule.resources));
            let all = |mine: &HashSet<&str>, theirs: &[String]| {
                mine.contains("*") || theirs.iter().all(|t| mine.contains(t.as_str()))
            };
            if all(&verbs, &wanted.verbs)
                && all(&groups, &wanted.api_groups)
                && all(&resources, &wanted.resources)
                && (names.is_empty()
                    || (!wanted_names.is_empty() && wanted_names.iter().all(|n| names.contains(n))))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn compare_names(
        &mut self,
        (verb, group, resource): (&str, &str, &str),
        names: &[&str],
        had: &[&Rule],
    ) -> Result<(), Ended> {
        // An empty list of names stands for every name. Only another empty list covers it.
        if had.iter().any(|rule| rule.resource_names.is_empty()) {
            return Ok(());
        }
        let atom = |name: Option<&str>| Rule {
            verbs: vec![verb.to_owned()],
            api_groups: vec![group.to_owned()],
            resources: vec![resource.to_owned()],
            resource_names: name.map(str::to_owned).into_iter().collect(),
            ..Rule::default()
        };
        if names.is_empty() {
            return self.miss(atom(None));
        }
        let mut known = HashSet::new();
        for rule in had {
            self.spend(rule.resource_names.len())?;
            known.extend(rule.resource_names.iter().map(String::as_str));
        }
        for name in names {
            self.spend(1)?;
            if !known.contains(name) {
                self.miss(atom(Some(name)))?;
            }
        }
        Ok(())
    }

    /// Returns the rules for which `so` returns true. `so` also returns the number of names that it compared.
    fn narrow(
        &mut self,
        rules: &[&'a Rule],
        so: impl Fn(&Rule) -> (bool, usize),
    ) -> Result<Vec<&'a Rule>, Ended> {
        let mut found = Vec::new();
        for rule in rules {
            let (is_so, looked) = so(rule);
            self.spend(1 + looked)?;
            if is_so {
                found.push(*rule);
            }
        }
        Ok(found)
    }

    fn spend(&mut self, steps: usize) -> Result<(), Ended> {
        self.steps = self.steps.saturating_add(steps);
        if self.is_spent() { Err(Ended) } else { Ok(()) }
    }

    fn miss(&mut self, atom: Rule) -> Result<(), Ended> {
        if self.missing.len() == MOST_MISSING {
            return Err(Ended);
        }
        self.missing.push(atom);
        Ok(())
    }
}

fn covers_resource(rule: &Rule, wanted: &str) -> bool {
    let (resource, sub) = wanted.split_once('/').unwrap_or((wanted, ""));
    let mut mine = rule.resources.iter();
    mine.any(|mine| mine == wanted || resource_covers(mine, resource, sub))
}

/// Number of names that a rule lists.
fn size(rule: &Rule) -> usize {
    let lists = [
        &rule.verbs,
        &rule.api_groups,
        &rule.resources,
        &rule.resource_names,
    ];
    1 + lists.iter().map(|list| list.len()).sum::<usize>()
}

fn set(list: &[String]) -> HashSet<&str> {
    list.iter().map(String::as_str).collect()
}

/// Removes duplicates and keeps the order.
fn unique(list: &[String]) -> Vec<&str> {
    let mut seen = HashSet::with_capacity(list.len());
    let texts = list.iter().map(String::as_str);
    texts.filter(|text| seen.insert(*text)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(from: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
        let text = prop::sample::select(from.to_vec());
        prop::collection::vec(text.prop_map(str::to_owned), 0..=most)
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let verbs = texts(&["get", "list", "*"], 2);
        let groups = texts(&["", "apps", "*"], 2);
        let resources = texts(&["pods", "pods/log", "*/log", "leases", "*"], 3);
        let names = texts(&["a", "b"], 2);
        let urls = texts(&["/a", "/a/b", "/a*", "*"], 2);
        (verbs, groups, resources, names, urls, any::<bool>()).prop_map(
            |(verbs, api_groups, resources, resource_names, non_resource_urls, path)| {
                if path {
                    return Rule {
                        verbs,
                        non_resource_urls,
                        ..Rule::default()
                    };
                }
                Rule {
                    verbs,
                    api_groups,
                    resources,
                    resource_names,
                    ..Rule::default()
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The result equals that of comparing every combination.
        #[test]
        fn missing_grants_are_those_of_every_combination(
            wanted in rule(), had in prop::collection::vec(rule(), 0..5),
        ) {
            let mut comparison = Comparison::new(&had);
            let whole = comparison.compare(&wanted);
            let mut expected: Vec<Rule> = Vec::new();
            for atom in wanted.atoms() {
                if !had.iter().any(|rule| rule.covers(&atom)) && !expected.contains(&atom) {
                    expected.push(atom);
                }
            }
            prop_assert_eq!(whole, expected.len() <= MOST_MISSING);
            let sorted = |rules: &[Rule]| {
                let mut texts: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
                texts.sort();
                texts
            };
            if whole {
                prop_assert_eq!(sorted(&comparison.missing), sorted(&expected));
            }
        }
    }

    /// A rule with `n` names in each list.
    fn wide(n: usize) -> Rule {
        let list = |prefix: &str| (0..n).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        Rule {
            verbs: list("v"),
            api_groups: list("g"),
            resources: list("r"),
            resource_names: list("n"),
            ..Rule::default()
        }
    }

    #[test]
    fn comparison_of_wide_rule_ends_after_a_few_missing_grants() {
        let mut comparison = Comparison::new(&[]);
        assert!(!comparison.compare(&wide(1_000)));
        assert_eq!(comparison.missing.len(), MOST_MISSING);
        assert!(comparison.steps() < 1_000, "{}", comparison.steps());
    }

    #[test]
    fn wide_rule_of_administrator_has_bounded_cost() {
        let all = || vec!["*".to_owned()];
        let had = [Rule {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            ..Rule::default()
        }];
        let mut steps = Vec::new();
        for n in [50, 100, 200, 400] {
            let mut comparison = Comparison::new(&had);
            assert!(comparison.compare(&wide(n)));
            assert!(comparison.missing.is_empty());
            steps.push(comparison.steps());
        }
        // The cost is verbs times groups, the square of one list, not its fourth power.
        assert!(
            steps.windows(2).all(|pair| pair[1] <= 5 * pair[0]),
            "{steps:?}"
        );
    }

    #[test]
    fn comparison_above_its_limit_is_a_rejection() {
        let same = [wide(300)];
        let mut comparison = Comparison::new(&same);
        assert!(comparison.compare(&wide(300)) && comparison.missing.is_empty());
        assert!(comparison.steps() < 10_000, "{}", comparison.steps());
        // Two rules cover it together, and neither covers it alone.
        let mut had = [wide(300), wide(300)];
        had[0].resource_names.remove(0);
        had[1].resource_names.truncate(1);
        let mut comparison = Comparison::new(&had);
        assert!(!comparison.compare(&wide(300)), "{}", comparison.steps());
        assert!(comparison.is_spent());
        assert!(
            comparison.steps() <= MOST_STEPS + 1_000,
            "{}",
            comparison.steps()
        );
    }
}
