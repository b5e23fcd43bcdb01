"""The paper's convergence theory: the conditions and the bound of Theorem 1, and the schedule of Corollary 1.

Everything is computed from plain numbers, collected in a `Setting`, without tensors, networks or problems.
"""

from depositum.theory.bound import Bound, bound
from depositum.theory.conditions import (
    Condition,
    LargestStepsize,
    Remedy,
    conditions,
    conditions_hold,
    largest_alpha,
    lemma3_conditions,
    network_lam,
    proposition1_conditions,
    rounded_down,
)
from depositum.theory.corollary import (
    CorollaryBound,
    CorollarySchedule,
    corollary_bound,
    corollary_schedule,
    corollary_setting,
    smallest_steps,
)
from depositum.theory.inequalities import (
    lemma1_rhs,
    lemma2_model_rhs,
    lemma2_movement_rhs,
    lemma2_tracking_rhs,
    lemma2_variation_rhs,
    lemma3_rhs,
    proposition1_rhs,
)
from depositum.theory.margins import delta1, delta2
from depositum.theory.practice import practical_alphas
from depositum.theory.setting import Setting

__all__ = [
    "Bound",
    "Condition",
    "CorollaryBound",
    "CorollarySchedule",
    "LargestStepsize",
    "Remedy",
    "Setting",
    "bound",
    "conditions",
    "conditions_hold",
    "corollary_bound",
    "corollary_schedule",
    "corollary_setting",
    "delta1",
    "delta2",
    "largest_alpha",
    "lemma1_rhs",
    "lemma2_model_rhs",
    "lemma2_movement_rhs",
    "lemma2_tracking_rhs",
    "lemma2_variation_rhs",
    "lemma3_conditions",
    "lemma3_rhs",
    "network_lam",
    "practical_alphas",
    "proposition1_conditions",
    "proposition1_rhs",
    "rounded_down",
    "smallest_steps",
]
