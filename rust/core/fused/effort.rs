//! How much of the sources does a draft read?

/// What reading more is worth depends on how long the target model takes: each step of it costs some
/// ten microseconds more a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// What pays where a step of the target model takes as long as it does; normal until it is told.
    #[default]
    Auto,
    /// Each source is searched for the context alone; nodes inherit what was found.
    Low,
    /// Likely nodes are searched for as well.
    Normal,
    /// Nearly all nodes are: for models that take 30 ms or more.
    High,
}

impl Effort {
    /// All of them, the least first after the one that chooses.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Low, Self::Normal, Self::High];

    /// Normal effort accepts 1.5 % more than low, for 35 to 75 µs, and several times that between two
    /// passes of a model, where caches are cold; high 1.0 % more than that with 64 nodes, for some 130.
    const NORMAL_FROM_S: f64 = 0.008;
    const HIGH_FROM_S: f64 = 0.03;

    /// What pays where a step of the target model takes so many seconds.
    #[must_use]
    pub fn for_steps_of(seconds: f64) -> Self {
        if seconds < Self::NORMAL_FROM_S {
            Self::Low
        } else if seconds < Self::HIGH_FROM_S {
            Self::Normal
        } else {
            Self::High
        }
    }

    /// The name that users know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
    }

    pub(crate) fn reading(self) -> Reading {
        match self {
            Self::Low => Reading {
                candidates: 32,
                least_candidates: 16,
                matches: 3,
                passages: 32,
                passages_beside: 24,
                skipped_places: 8,
                skip_from: 0.3,
                likely: f32::INFINITY,
                likely_far: 0.5,
                singles_far: 8,
                hope: 0.4,
                enough_places: 4,
                reach: 512.0,
                slack: 1.0,
            },
            Self::Auto | Self::Normal => Reading {
                candidates: 32,
                least_candidates: 32,
                matches: 3,
                passages: 64,
                passages_beside: 64,
                skipped_places: 32,
                skip_from: 0.0,
                likely: 0.1,
                likely_far: 0.1,
                singles_far: 8,
                hope: 0.5,
                enough_places: 16,
                reach: 512.0,
                slack: 0.0,
            },
            Self::High => Reading {
                candidates: 64,
                least_candidates: 64,
                matches: 4,
                passages: 128,
                passages_beside: 128,
                skipped_places: 32,
                skip_from: 0.0,
                likely: 0.02,
                likely_far: 0.1,
                singles_far: 32,
                hope: 0.8,
                enough_places: 64,
                reach: 2048.0,
                slack: 0.0,
            },
        }
    }
}

/// What is read for a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// How many of the likeliest tokens of a node are corrected at most, and how many where the tree
    /// has room for no more nodes than that.
    pub(crate) candidates: usize,
    pub(crate) least_candidates: usize,
    /// How many of the longest matches of the context are read from, and how many passages of each.
    pub(crate) matches: usize,
    pub(crate) passages: usize,
    /// How many are read of a match beside those of a longer one that says enough.
    pub(crate) passages_beside: usize,
    /// So many places of a text tell what follows where another token than a node's came.
    pub(crate) skipped_places: usize,
    /// A node this likely knows what follows where another token than its own came.
    pub(crate) skip_from: f32,
    /// A node this likely is looked up in the datastore again, where its parent's passages run thin.
    pub(crate) likely: f32,
    /// A node this likely is searched for in a text that is not near, where its parent's places run thin.
    pub(crate) likely_far: f32,
    /// So many places that only the last token of the context leads to are looked at in a text that is
    /// not near: each of them is a wait for memory.
    pub(crate) singles_far: usize,
    /// What a child's probability is at most, for a guess of whether it is worth a look: below its
    /// parent's times this. At a half, half of all nodes are leaves that are then never looked up.
    pub(crate) hope: f32,
    /// So many places of a text that lead to a node are enough.
    pub(crate) enough_places: usize,
    /// How many of the latest places of a text are looked at, at a node that is sure to come.
    pub(crate) reach: f32,
    /// What experts hold to be less than this times as likely as the least likely path that fits is no
    /// candidate: what is known besides seldom doubles it.
    pub(crate) slack: f32,
}
