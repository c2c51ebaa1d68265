"""Folders of images in ImageNet's layout, learnt by keras.applications.ResNet50."""
