"""A safe start: a policy that is held back to the arm of today as long as it may cost more than allowed."""
