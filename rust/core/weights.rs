//! What has each kind of evidence proved to be worth?

use crate::evidence::Kind;

/// What a mixer has learned.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    pub(crate) order: Vec<f32>,
    pub(crate) agreement: Vec<f32>,
    pub(crate) last_token: Vec<f32>,
    pub(crate) cache: Vec<f32>,
    pub(crate) token: Vec<f32>,
    pub(crate) recent: Vec<f32>,
    pub(crate) trust: Vec<f32>,
}

pub(crate) const ORDERS: usize = 8;
pub(crate) const LAST_TOKENS: usize = 2048;
pub(crate) const TOKENS: usize = 16384;

impl Default for Weights {
    fn default() -> Self {
        let mut order = Vec::new();
        for kind in 0..Kind::COUNT {
            for length in 0..ORDERS {
                let own = if kind == 1 || kind == 2 { 1.5 } else { 0.0 };
                let weight = if kind >= 3 {
                    -1.0
                } else {
                    0.9 * length as f32 + own
                };
                order.extend([weight; 8 * 3]);
            }
        }
        Self {
            order,
            agreement: vec![0.0; Kind::COUNT * 5 * 3 * 3 * 3],
            last_token: vec![0.0; Kind::COUNT * LAST_TOKENS],
            cache: vec![0.0; 5 * 13 * 4 * 2],
            token: vec![0.0; TOKENS],
            recent: vec![0.0; 9 * 16],
            trust: vec![0.0; Kind::COUNT * 3 * 9 * 4],
        }
    }
}
