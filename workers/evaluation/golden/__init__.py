"""Golden questions: all arms answer them once in each period, and the policy learns the outcomes."""
