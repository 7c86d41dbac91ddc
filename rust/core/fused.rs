//! What do all sources together make of the next tokens?

use std::sync::{Arc, PoisonError, RwLock};

use crate::datastore::Datastore;
use crate::draft::Session;
use crate::error::Result;
use crate::followers::AllFollowers;
use crate::evidence::{END, Evidence, Kind, Known};
use crate::history::History;
use crate::mixer::{Place, RATES, Rates, learn, mix};
use crate::passages::{Group, Passages};
use crate::positions::{Caps, Position, Positions, find, follow};
use crate::tree::{Source, TokenTree};
use crate::weights::Weights;

#[derive(Debug, Clone, Copy)]
pub struct FusedConfig {
    pub context: bool,
    pub context_caps: Caps,
    pub memory_caps: Caps,
    pub root_cap: usize,
    pub follow_cap: usize,
    pub follow_top: usize,
    pub own_thin: usize,
    pub own_enough: usize,
    pub max_static: usize,
    pub max_own: usize,
    pub max_depth: usize,
    pub min_prob: f32,
    pub min_share: f32,
    pub likely: f32,
    pub bound: f32,
    pub gaps: bool,
    pub learn_leaf: bool,
}

impl Default for FusedConfig {
    fn default() -> Self {
        Self {
            context: true,
            context_caps: Caps { pairs: 512, singles: 128 },
            memory_caps: Caps { pairs: 512, singles: 128 },
            root_cap: 64,
            follow_cap: 256,
            follow_top: 32,
            own_thin: 100_000,
            own_enough: 100_000,
            max_static: 3,
            max_own: 3,
            max_depth: 20,
            min_prob: 1e-5, min_share: 0.0, likely: 0.0,
            bound: 0.5,
            gaps: true,
            learn_leaf: false,
        }
    }
}

/// What sessions share.
#[derive(Debug)]
pub struct FusedState {
    pub datastore: Option<Arc<Datastore>>,
    pub config: FusedConfig,
    pub weights: RwLock<Weights>,
    memory: RwLock<(History, Vec<u32>)>,
    frequency: Vec<u8>,
    followers: AllFollowers,
}

impl FusedState {
    pub fn new(datastore: Option<Arc<Datastore>>, config: FusedConfig, weights: Weights) -> Self {
        let vocab = datastore.as_ref().map_or(0, |d| d.vocab_size());
        let frequency = (0..vocab)
            .map(|token| {
                let count = datastore.as_ref().unwrap().count(&[token]).unwrap_or(0) + 1;
                (count.ilog2() / 2) as u8
            })
            .collect();
        Self {
            datastore,
            config,
            weights: RwLock::new(weights),
            memory: RwLock::default(),
            frequency,
            followers: AllFollowers::new(vocab, config.follow_cap, config.follow_top),
        }
    }
}

impl FusedState {
    pub fn fill(&self, tokens: &[u32]) {
        self.memory.write().unwrap().0.extend(tokens);
    }
}

#[derive(Debug, Clone)]
struct Node {
    known: Known,
    /// Index in the tree, of the root -1.
    place: i32,
    context: Positions,
    memory: Positions,
    groups: std::ops::Range<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    prob: f32,
    /// Which expanded node it is a child of.
    node: u32,
    token: u32,
    order: u32,
}

/// A request.
#[derive(Debug)]
pub struct FusedSession {
    state: Arc<FusedState>,
    history: History,
    prompt_length: Option<usize>,
    occurrences: Vec<f32>,
    longest: usize,
    tail: Vec<u32>,
    evidence: Evidence,
    passages: Passages,
    positions: Vec<Position>,
    nodes: Vec<Node>,
    pending: Vec<Pending>,
    tree: TokenTree,
    expanded: Vec<Option<u32>>,
    depths: Vec<u32>,
    is_drafted: bool,
    pub stats: Stats,
}

#[derive(Debug, Default, Clone)]
pub struct Stats {
    pub expansions: usize,
    pub drafts: usize,
    pub finds: usize,
    pub rows: usize,
    pub positions: usize,
    pub tokens: usize,
    pub counts: usize,
    pub experts: usize,
    pub t_static: f64,
    pub t_own: f64,
    pub t_count: f64,
    pub t_mix: f64,
    pub t_root: f64,
}

const TAIL: usize = 32;

impl FusedSession {
    pub fn new(state: Arc<FusedState>) -> Self {
        Self {
            state,
            history: History::default(),
            prompt_length: None,
            occurrences: vec![0.0; 65536],
            longest: 0,
            tail: Vec::new(),
            evidence: Evidence::default(),
            passages: Passages::default(),
            positions: Vec::new(),
            nodes: Vec::new(),
            pending: Vec::new(),
            tree: TokenTree::default(),
            expanded: Vec::new(),
            depths: Vec::new(),
            is_drafted: false,
            stats: Stats::default(),
        }
    }

    fn start(&mut self) {
        self.evidence.clear();
        self.passages.clear();
        self.positions.clear();
        self.nodes.clear();
        self.pending.clear();
        self.tree = TokenTree::default();
        self.expanded.clear();
        self.depths.clear();
        self.tail.clear();
        let tokens = self.history.tokens();
        self.tail.extend_from_slice(&tokens[tokens.len().saturating_sub(TAIL)..]);
        self.is_drafted = true;
    }

    /// The tail at a tree node.
    fn set_tail(&mut self, place: i32) {
        self.tail.truncate(TAIL.min(self.history.tokens().len()));
        let start = self.tail.len();
        let mut place = place;
        while place >= 0 {
            self.tail.push(self.tree.token_ids()[place as usize]);
            place = self.tree.parents()[place as usize];
        }
        self.tail[start..].reverse();
    }

    fn expand(&mut self, place: i32, parent: Option<u32>, prob: f32, memory: &History, weights: &Weights) -> usize {
        self.set_tail(place);
        let state = Arc::clone(&self.state);
        let config = state.config;
        let token = self.tail.last().copied().unwrap_or(END);
        let t0 = now();
        let mut known = self.evidence.start_node();
        // Datastore.
        let first = self.passages.groups.len();
        if let Some(datastore) = &state.datastore {
            self.match_static(datastore, parent, token, &config);
        }
        let groups = first..self.passages.groups.len();
        let t1 = now();
        let (context, memory_positions);
        let small = |caps: Caps| if prob < config.likely { Caps { pairs: caps.pairs / 4, singles: caps.singles / 4 } } else { caps };
        let (context_caps, memory_caps) = (small(config.context_caps), small(config.memory_caps));
        match parent {
            None => {
                context = find(&self.history, &self.tail, context_caps, &mut self.positions);
                memory_positions = find(memory, &self.tail, memory_caps, &mut self.positions);
            }
            Some(parent) => {
                let parent = self.nodes[parent as usize].clone();
                context = follow(&self.history, &parent.context, &self.tail, context_caps, config.own_thin, config.own_enough, &mut self.positions);
                memory_positions = follow(memory, &parent.memory, &self.tail, memory_caps, config.own_thin, config.own_enough, &mut self.positions);
            }
        }
        let t2 = now();
        self.stats.positions += context.range.len() + memory_positions.range.len();
        // Counts.
        let mut rank = 0;
        let mut last_size = 0.0;
        for index in groups.clone() {
            let group = self.passages.groups[index].clone();
            if rank >= config.max_static || group.num_matches == last_size {
                continue;
            }
            last_size = group.num_matches;
            let start = self.evidence.start_expert();
            for row in &self.passages.rows[group.rows.clone()] {
                self.evidence.count(&known, self.passages.tokens[*row as usize], 1.0);
            }
            if self.evidence.finish_expert(&known, start, Kind::Datastore, group.order, rank, group.num_matches) {
                rank += 1;
            }
        }
        if let Some(followers) = state.datastore.as_ref().and_then(|d| state.followers.of(d, token)) {
            let start = self.evidence.start_expert();
            let floor = config.min_share / prob * followers.total * 0.5;
            for &(token, count) in &followers.counts {
                if count < floor { break; }
                self.evidence.count(&known, token, count);
            }
            if self.evidence.finish_expert(&known, start, Kind::Datastore, 1, rank, followers.num_matches) {
                let expert = self.evidence.experts.last_mut().unwrap();
                expert.total = followers.total;
            }
        }
        add_own(&mut self.evidence, &known, &self.history, &self.positions[context.range.clone()], Kind::Context, config.max_own);
        add_own(&mut self.evidence, &known, memory, &self.positions[memory_positions.range.clone()], Kind::Memory, config.max_own);
        if config.gaps {
            if let Some(parent) = parent {
                let parent = self.nodes[parent as usize].clone();
                self.add_gaps(&known, &parent, token, memory);
            } else {
                self.add_root_gaps(&known, memory);
            }
        }
        self.evidence.finish_node(&mut known);
        let t3 = now();
        self.stats.tokens += known.tokens.len();
        self.stats.experts += known.experts.len();
        let occurrences = &self.occurrences;
        let frequency = &state.frequency;
        let from = self.tail.len().saturating_sub(8);
        let place_ = Place {
            tail: &self.tail[from..],
            min_share: (config.min_share / prob).max(1.0 / 1024.0),
            occurrences: &|token| occurrences.get(token as usize).copied().unwrap_or(0.0),
            frequency: &|token| u32::from(frequency.get(token as usize).copied().unwrap_or(0)),
        };
        mix(weights, &mut self.evidence, &mut known, &place_);
        let t4 = now();
        self.stats.t_static += t1 - t0;
        self.stats.t_own += t2 - t1;
        self.stats.t_count += t3 - t2;
        self.stats.t_mix += t4 - t3;
        if parent.is_none() {
            self.stats.t_root += t4 - t0;
        }
        self.stats.expansions += 1;
        self.nodes.push(Node { known, place, context, memory: memory_positions, groups });
        self.nodes.len() - 1
    }

    fn match_static(&mut self, datastore: &Datastore, parent: Option<u32>, token: u32, config: &FusedConfig) {
        let separator = datastore.separator();
        let tail_start = self.tail.iter().rposition(|&t| t == separator).map_or(0, |p| p + 1);
        let tail = &self.tail[tail_start..];
        if tail.is_empty() {
            return;
        }
        match parent {
            None => {
                let started = std::time::Instant::now();
                self.longest = self.passages.look_up(datastore, tail, config.max_static, config.root_cap);
                if std::env::var_os("LAB").is_none() { datastore.note(started.elapsed() / 8, self.passages.rows.len() as u64); }
            }
            Some(parent) => {
                for group in self.nodes[parent as usize].groups.clone() {
                    self.passages.follow(group, token);
                }
            }
        }
    }

    fn add_gaps(&mut self, known: &Known, parent: &Node, token: u32, memory: &History) {
        let rows = |group: &Group| group.rows.len();
        if let Some(index) = parent.groups.clone().find(|&g| {
            let group = &self.passages.groups[g];
            group.order >= 2 && rows(group) >= 4
        }) {
            let group = self.passages.groups[index].clone();
            let start = self.evidence.start_expert();
            let mut number = 0.0;
            for &row in self.passages.rows[group.rows].iter().take(64) {
                let row = row as usize;
                if self.passages.tokens[row] != END {
                    number += 1.0;
                    self.evidence.count(known, self.passages.tokens[row + 1], 1.0);
                }
            }
            self.evidence.finish_expert(known, start, Kind::DatastoreGap, group.order, 0, number);
        }
        for (kind, history, positions) in [
            (Kind::ContextGap, &self.history, parent.context.range.clone()),
            (Kind::MemoryGap, memory, parent.memory.range.clone()),
        ] {
            let tokens = history.tokens();
            let start = self.evidence.start_expert();
            let mut number = 0.0;
            for position in self.positions[positions].iter().take(64) {
                if position.length >= 2 && tokens[position.next as usize] != token {
                    if let Some(&next) = tokens.get(position.next as usize + 1) {
                        self.evidence.count(known, next, 1.0);
                        number += 1.0;
                    }
                }
            }
            self.evidence.finish_expert(known, start, kind, 1, 0, number);
        }
    }

    fn add_root_gaps(&mut self, known: &Known, memory: &History) {
        let [.., first, second, last] = *self.tail else {
            return;
        };
        for (kind, history) in [(Kind::ContextGap, &self.history), (Kind::MemoryGap, memory)] {
            let tokens = history.tokens();
            let start = self.evidence.start_expert();
            let mut number = 0.0;
            for end in history.of_pair(first, second).take(64) {
                if tokens.get(end + 1).is_some_and(|&t| t != last)
                    && let Some(&next) = tokens.get(end + 2)
                {
                    self.evidence.count(known, next, 1.0);
                    number += 1.0;
                }
            }
            self.evidence.finish_expert(known, start, kind, 1, 0, number);
        }
    }

    fn grow(&mut self, max_nodes: usize, memory: &History, weights: &Weights) {
        let config = self.state.config;
        let mut order = 0;
        if max_nodes == 0 {
            return;
        }
        let root = self.expand(-1, None, 1.0, memory, weights);
        self.push_children(root, 1.0, max_nodes, &mut order);
        while let Some(next) = self.pending.pop() {
            let parent = self.nodes[next.node as usize].place;
            let place = self.tree.len() as i32;
            self.tree.push(next.token, parent, next.prob, Source::Other);
            self.expanded.push(None);
            let depth = if parent < 0 { 1 } else { self.depths[parent as usize] + 1 };
            self.depths.push(depth);
            let free = max_nodes - self.tree.len();
            if free == 0 {
                break;
            }
            let excess = self.pending.len().saturating_sub(free);
            self.pending.drain(..excess);
            if depth as usize >= config.max_depth {
                continue;
            }
            let threshold = if self.pending.len() == free { self.pending[0].prob } else { config.min_prob };
            if next.prob * config.bound <= threshold {
                continue;
            }
            let node = self.expand(place, Some(next.node), next.prob, memory, weights);
            self.expanded[place as usize] = Some(node as u32);
            self.push_children(node, next.prob, free, &mut order);
        }
    }

    fn push_children(&mut self, node: usize, prob: f32, free: usize, order: &mut u32) {
        let min_prob = self.state.config.min_prob;
        let candidates = self.nodes[node].known.candidates.clone();
        for candidate in &self.evidence.candidates[candidates] {
            let prob = prob * candidate.prob;
            *order += 1;
            let new = Pending { prob, node: node as u32, token: candidate.token, order: *order };
            if prob < min_prob || (self.pending.len() >= free && prob <= self.pending[0].prob) {
                continue;
            }
            let key = |a: &Pending| (a.prob, std::cmp::Reverse(a.order));
            let at = self.pending.partition_point(|other| key(other) < key(&new));
            self.pending.insert(at, new);
            if self.pending.len() > free {
                self.pending.remove(0);
            }
        }
    }

    fn learn_all(&mut self, tokens: &[u32], rates: &Rates) {
        let state = Arc::clone(&self.state);
        let memory = state.memory.read().unwrap_or_else(PoisonError::into_inner);
        let mut weights = state.weights.write().unwrap_or_else(PoisonError::into_inner);
        let mut node = Some(0_usize);
        let mut place = -1_i32;
        for &token in tokens {
            let Some(index) = node else { break };
            learn(&mut weights, &self.evidence, &self.nodes[index].known, token, rates);
            let next = (0..self.tree.len()).find(|&n| self.tree.parents()[n] == place && self.tree.token_ids()[n] == token);
            let Some(next) = next else { break };
            place = next as i32;
            node = self.expanded[next].map(|n| n as usize);
            if node.is_none() && state.config.learn_leaf {
                node = Some(self.expand(place, Some(index as u32), self.tree.probs()[next], &memory.0, &weights));
            }
        }
    }

    /// Teacher-forced.
    pub fn teach(&mut self, tokens: &[u32]) {
        let state = Arc::clone(&self.state);
        for token in tokens {
            self.start();
            {
                let memory = state.memory.read().unwrap();
                let weights = state.weights.read().unwrap();
                self.expand(-1, None, 1.0, &memory.0, &weights);
            }
            self.observe(&[*token]).unwrap();
        }
    }
}

fn now() -> f64 {
    #[cfg(specds_timing)]
    {
        return std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    }
    #[cfg(not(specds_timing))]
    0.0
}

fn add_own(evidence: &mut Evidence, known: &Known, history: &History, positions: &[Position], kind: Kind, max: usize) {
    let tokens = history.tokens();
    let mut limit = u32::MAX;
    for rank in 0..max {
        let Some(length) = positions.iter().map(|p| p.length).filter(|&l| l < limit).max() else {
            return;
        };
        limit = length;
        let start = evidence.start_expert();
        let mut weight = 1.0;
        let mut number = 0;
        for position in positions.iter().filter(|p| p.length >= length) {
            evidence.count(known, tokens[position.next as usize], weight);
            if number < 60 {
                weight *= 0.95;
            }
            number += 1;
        }
        evidence.finish_expert(known, start, kind, length as usize, rank, number as f32);
    }
}

impl Session for FusedSession {
    fn observe(&mut self, tokens: &[u32]) -> Result<()> {
        if let Some(datastore) = &self.state.datastore {
            datastore.check_tokens(tokens)?;
        }
        if self.is_drafted && !self.nodes.is_empty() {
            self.learn_all(tokens, &RATES);
        }
        self.is_drafted = false;
        self.nodes.clear();
        self.history.extend(tokens);
        self.longest = (self.longest + tokens.len()).min(16);
        let weight = if self.prompt_length.is_none() { 0.5 } else { 1.0 };
        let counted = if self.prompt_length.is_none() { &tokens[tokens.len().saturating_sub(400)..] } else { tokens };
        for &token in counted {
            if let Some(count) = self.occurrences.get_mut(token as usize) {
                *count += weight;
            }
        }
        self.prompt_length.get_or_insert(tokens.len());
        Ok(())
    }

    fn draft(&mut self, max_nodes: usize) -> Result<TokenTree> {
        self.start();
        let state = Arc::clone(&self.state);
        let memory = state.memory.read().unwrap_or_else(PoisonError::into_inner);
        let weights = state.weights.read().unwrap_or_else(PoisonError::into_inner);
        self.grow(max_nodes, &memory.0, &weights);
        self.stats.drafts += 1;
        self.stats.finds = self.passages.num_finds;
        self.stats.rows = self.passages.num_rows;
        self.stats.counts += self.evidence.counts.len();
        Ok(self.tree.clone())
    }

    fn match_length(&self) -> usize {
        0
    }

    fn finish(&mut self) {
        let mut memory = self.state.memory.write().unwrap_or_else(PoisonError::into_inner);
        let (history, last) = &mut *memory;
        let tokens = self.history.tokens();
        let prompt = self.prompt_length.unwrap_or(0);
        let shared = tokens[..prompt].iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
        history.extend(&tokens[shared..]);
        history.extend(&[END]);
        *last = tokens.to_vec();
    }
}
