"""Methods side by side at equal budgets: accuracy after so many forwards, and after so much time."""

from noback.budgets.plan import Plan, plan_of, read_plan
from noback.budgets.running import FILE, begin, bench_methods, bench_part
from noback.budgets.table import text

__all__ = ["FILE", "Plan", "begin", "bench_methods", "bench_part", "plan_of", "read_plan", "text"]
