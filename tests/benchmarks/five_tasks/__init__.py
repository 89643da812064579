"""Five everyday tasks, each written for clusterdp, Lightning, Keras and skorch."""
