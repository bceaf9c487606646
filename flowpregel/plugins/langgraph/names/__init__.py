"""Names of LangGraph that other packages import, and that have no use outside of the
import hook.
"""
