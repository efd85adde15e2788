//! Arena layout from lifetimes: the planner, the independent checker, the plan cache and its statistics.
