"""Small trainings that know nothing of clusterdp: one without a fault, those with one, and those with odd habits."""
