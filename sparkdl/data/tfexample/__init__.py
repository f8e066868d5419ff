"""TFRecord files of `tf.train.Example`, written and read without TensorFlow."""
