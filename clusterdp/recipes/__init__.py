"""Small real trainings that configs/ points to. Each runs alone, under torchrun, and as a job.

first             one to begin with: its model and its data are for you to replace
digits            a convolutional network on handwritten digits, with job.loop
trainer_digits    the same with Trainer
techniques        the same with every technique that a config can choose
shards            the same from tar files
results           the accuracy and the digest that they report at their end
by_hand           data parallelism written out, without DistributedDataParallel
parameter_server  a synchronous parameter server
characters        a small language model
linear            linear regression
products          matrix products, timed on CPU and GPU
data/             the data sets that they read
"""
