"""Small trainings on real data, which the files in configs/ start. Each training runs alone, under torchrun, and as a
job.

first             a training to begin with, to be filled with another model and other data
digits            a convolutional network on handwritten digits, with job.loop
trainer_digits    the digits with Trainer
gan               two networks, two optimizers, and a step of its own
unet              an encoder and a decoder with skip connections on two devices
pipeline          two stages on two ranks, with microbatches
techniques        the digits with every technique that a config can choose
shards            the digits from tar files
dali              the digits from a pipeline of NVIDIA DALI
results           the accuracy and the digest that recipes report at their end
by_hand           data parallelism written out, without DistributedDataParallel
parameter_server  a synchronous parameter server
characters        a small language model
linear            linear regression
products          matrix products, timed on CPU and GPU
data/             the data sets of the recipes
"""
