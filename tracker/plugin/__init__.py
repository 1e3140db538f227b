"""The tab *Updates* in TensorBoard: every layer, every summary step, one picture.

TensorBoard finds it by the entry point `tensorboard_plugins` of the installed package. It reads
scalars through TensorBoard's own data provider, whoever wrote them, and never imports TensorFlow.
"""
