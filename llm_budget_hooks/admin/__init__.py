"""What operators see and change, in forms that JSON can carry: the command line, the admin API and the dashboard.

Amounts of dollars are texts with the digits of the exact amount, never floats. What could not be read is None.
"""
